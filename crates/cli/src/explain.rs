//! `outlive config explain`: each value and where it comes from.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use outlive_base::Result;
use serde::Serialize;

use crate::config::{Config, KEYS, Key, variable_of};
use crate::options::Settings;
use crate::{output, run};

#[derive(Args, Debug)]
pub struct ConfigOptions {
    #[command(subcommand)]
    pub action: ConfigAction,
}

#[derive(Subcommand, Debug)]
pub enum ConfigAction {
    /// Print each value and where it comes from
    Explain {
        #[command(flatten)]
        settings: Box<Settings>,
        /// Configuration file, read after the system's and the user's [default: only those]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Serialize)]
struct Explained<'a> {
    schema: &'static str,
    values: Vec<Value<'a>>,
}

#[derive(Serialize)]
struct Value<'a> {
    option: &'a str,
    /// None: there is none, and none is needed.
    value: Option<String>,
    origin: String,
    /// What decided, where nothing was given.
    decided_by: Option<&'a str>,
    variable: String,
}

/// `outlive config explain`.
pub fn explain(options: ConfigOptions) -> Result<u8> {
    let ConfigAction::Explain {
        settings,
        config,
        json,
    } = options.action;
    let config = Config::load(&settings, config.as_deref())?;
    let value = |key: &'static Key| -> Result<Value<'static>> {
        let (value, origin) = config.with_origin(key);
        let decided = value.is_empty();
        Ok(Value {
            option: key.name,
            value: match decided {
                true => run::decided(&config, key.name)?,
                false => Some(value.to_owned()),
            },
            origin: if decided {
                "decided".into()
            } else {
                origin.to_string()
            },
            decided_by: decided.then_some(key.decided),
            variable: variable_of(key.name),
        })
    };
    let values: Vec<Value<'_>> = KEYS.iter().map(value).collect::<Result<_>>()?;
    if json {
        return output::json(&Explained {
            schema: "outlive.config/2",
            values,
        });
    }
    let heading = ["OPTION", "VALUE", "FROM"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(values.into_iter().map(|value| {
        let from = value
            .decided_by
            .map_or(value.origin, |by| format!("decided: {by}"));
        let shown = value.value.unwrap_or_else(|| "none".to_owned());
        vec![value.option.to_owned(), shown, from]
    }));
    output::text(&output::table(&rows))
}
