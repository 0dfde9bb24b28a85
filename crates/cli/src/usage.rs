//! A command line that is not understood: what is wrong with which option, what is
//! allowed, and what was probably meant. The parser's own tips are not shown: they advise
//! `-- -5` to somebody who wrote `--every -5`.

use std::any::TypeId;
use std::ffi::OsString;

use clap::builder::NonEmptyStringValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};
use outlive_base::{Code, Entity, Error};

/// An option that is nearly a known one: so many letters wrong, missing or swapped.
const NEAR: usize = 2;

/// The parser. A number may be negative everywhere: what is wrong with it is then said by
/// the option that it was given to. No text is empty.
pub fn lenient(command: Command) -> Command {
    let takes = |arg: &Arg| arg.get_action().takes_values() && !arg.is_last_set();
    let command = command.mut_args(|arg| {
        if !takes(&arg) {
            return arg;
        }
        let text = arg.get_value_parser().type_id() == TypeId::of::<String>();
        let fixed = arg.get_value_parser().possible_values().is_some();
        let arg = arg.allow_negative_numbers(true);
        match text && !fixed {
            true => arg.value_parser(NonEmptyStringValueParser::new()),
            false => arg,
        }
    });
    command.mut_subcommands(lenient)
}

/// The error in our own form.
pub fn explain(error: &clap::Error, top: &Command, words: &[OsString]) -> Error {
    let words: Vec<String> = words
        .iter()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let (command, path) = addressed(top, &words);
    let about = text(error, ContextKind::InvalidArg).unwrap_or_default();
    let arg = command.get_arguments().find(|arg| shown(arg, &about));
    let entity = arg.map_or(Entity::Call, |arg| Entity::Option(name(arg)));
    let help = format!("{path} --help says what there is");
    let (reason, remedy) = match error.kind() {
        ErrorKind::UnknownArgument => unknown(error, top, command, &path, &words),
        ErrorKind::InvalidSubcommand => no_such_command(error, command, &path, &words),
        ErrorKind::MissingRequiredArgument => missing(error, &path),
        ErrorKind::ArgumentConflict => {
            let prior = texts(error, ContextKind::PriorArg);
            match prior.first() {
                Some(other) if *other != about => (
                    format!("{about} and {} exclude each other", prior.join(", ")),
                    "give one of them".to_owned(),
                ),
                _ => (
                    "is given more than once".to_owned(),
                    format!("give {} once", arg.map_or(about.clone(), dashed)),
                ),
            }
        }
        ErrorKind::TooManyValues => {
            let value = text(error, ContextKind::InvalidValue).unwrap_or_default();
            let remedy = format!("write {} alone", arg.map_or(about.clone(), dashed));
            (format!("takes no value, and '{value}' is one"), remedy)
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => match arg {
            Some(arg) => bad_value(error, arg, &path),
            None => (plain(error), help),
        },
        _ => (plain(error), help),
    };
    Error::new(Code::InvalidArgument, entity, reason, remedy)
}

/// The subcommand that the words lead to, and how it is called.
fn addressed<'a>(top: &'a Command, words: &[String]) -> (&'a Command, String) {
    let (mut command, mut path) = (top, top.get_name().to_owned());
    for word in words.iter().take_while(|word| *word != "--") {
        match command.find_subcommand(word) {
            Some(next) => {
                path += &format!(" {word}");
                command = next;
            }
            None if word.starts_with('-') => {}
            None => break,
        }
    }
    (command, path)
}

fn unknown(
    error: &clap::Error,
    top: &Command,
    command: &Command,
    path: &str,
    words: &[String],
) -> (String, String) {
    let said = text(error, ContextKind::InvalidArg).unwrap_or_default();
    let name = said.split('=').next().unwrap_or_default();
    let runs = command.get_arguments().find(|arg| arg.is_last_set());
    if !said.starts_with('-') {
        let reason = format!("'{said}' has no place here");
        let at = words.iter().position(|word| *word == said);
        return match (runs, at) {
            (Some(_), Some(at)) => (
                format!("'{said}' is no option: there is no -- before the command"),
                format!(
                    "write outlive {} -- {}",
                    words[..at].join(" "),
                    words[at..].join(" ")
                ),
            ),
            _ if command
                .get_arguments()
                .any(|arg| arg.get_long() == Some("job")) =>
            {
                (reason, format!("if it is a job's name, write --job {said}"))
            }
            _ => (reason, format!("{path} --help says what there is")),
        };
    }
    let reason = format!("'{name}' is no option of {path}");
    let suggested = text(error, ContextKind::SuggestedArg);
    let near = suggested.or_else(|| nearest(command, name));
    let elsewhere = with_option(top, top.get_name(), name);
    let remedy = match (near, elsewhere, runs) {
        (Some(near), None, _) => format!("did you mean {near}?"),
        (Some(near), Some(other), _) => {
            format!("did you mean {near}? {name} is an option of {other}")
        }
        (None, Some(other), _) => format!("it is an option of {other}"),
        (None, None, Some(_)) => {
            format!("{path} --help lists the options; those of the command itself belong behind --")
        }
        _ => format!("{path} --help lists the options"),
    };
    (reason, remedy)
}

/// The option of the command that is nearly this one.
fn nearest(command: &Command, name: &str) -> Option<String> {
    let names = command.get_arguments().filter_map(Arg::get_long);
    let names = names.map(|long| format!("--{long}"));
    let far = |one: &String| strsim::damerau_levenshtein(name, one);
    names.filter(|one| far(one) <= NEAR).min_by_key(far)
}

/// The first visible subcommand that has this option.
fn with_option(command: &Command, path: &str, name: &str) -> Option<String> {
    let visible = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    for sub in visible {
        let path = format!("{path} {}", sub.get_name());
        let long = |arg: &Arg| {
            arg.get_long()
                .is_some_and(|long| name == format!("--{long}"))
        };
        if sub.get_arguments().any(long) {
            return Some(path);
        }
        if let Some(found) = with_option(sub, &path, name) {
            return Some(found);
        }
    }
    None
}

fn no_such_command(
    error: &clap::Error,
    command: &Command,
    path: &str,
    words: &[String],
) -> (String, String) {
    let said = text(error, ContextKind::InvalidSubcommand).unwrap_or_default();
    let reason = format!("'{said}' is no command of {path}");
    let names = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let names: Vec<&str> = names.map(Command::get_name).collect();
    let near = texts(error, ContextKind::SuggestedSubcommand);
    let far = |one: &&&str| strsim::damerau_levenshtein(&said, one);
    let near = near.into_iter().next().or_else(|| {
        let near = names.iter().filter(|one| far(one) <= NEAR).min_by_key(far);
        near.map(|name| (*name).to_owned())
    });
    let remedy = match near {
        Some(near) => format!("did you mean {path} {near}?"),
        None if words.len() > 1 && words[0] == said => {
            format!(
                "to run it: outlive run -- {}; {path} --help lists the commands",
                words.join(" ")
            )
        }
        None => format!("use {}", one_of(&names)),
    };
    (reason, remedy)
}

fn missing(error: &clap::Error, path: &str) -> (String, String) {
    let missing = texts(error, ContextKind::InvalidArg).join(", ");
    let remedy = match missing.as_str() {
        "<COMMAND>..." => {
            "write the command behind --, for example: outlive run -- mpirun -n 8 ./app".to_owned()
        }
        "<PROGRAM>..." => {
            "write the program behind --, for example: outlive minickpt run -- ./app".to_owned()
        }
        _ => format!("add it; {path} --help says what it means"),
    };
    (format!("{missing} is missing"), remedy)
}

fn bad_value(error: &clap::Error, arg: &Arg, path: &str) -> (String, String) {
    let value = text(error, ContextKind::InvalidValue).unwrap_or_default();
    let how = match arg.get_value_names() {
        Some([name, ..]) if arg.get_long().is_some() => format!("{} {name}", dashed(arg)),
        _ => dashed(arg),
    };
    let valid = texts(error, ContextKind::ValidValue);
    let inner = std::error::Error::source(error).map(ToString::to_string);
    let allowed = match (valid.is_empty(), &inner) {
        (false, _) => Some(format!("use {}", one_of(&valid))),
        (true, inner) => number(arg, inner.as_deref()),
    };
    let remedy = allowed.unwrap_or_else(|| format!("write {how}; {path} --help says more"));
    if value.is_empty() {
        return ("a value is missing".to_owned(), remedy);
    }
    let shown: String = value.chars().take(60).collect();
    let near = text(error, ContextKind::SuggestedValue);
    let remedy = near.map_or(remedy.clone(), |near| {
        format!("did you mean {near}? {remedy}")
    });
    // What a parser of ours says is better than that of numbers in general.
    let why = inner.filter(|_| remedy.contains("--help"));
    let why = why.unwrap_or_else(|| "is not allowed".to_owned());
    (format!("'{shown}': {why}"), remedy)
}

/// What a number may be.
fn number(arg: &Arg, inner: Option<&str>) -> Option<String> {
    // "-5 is not in 1..=16777216" is all that a range tells, and not for every value.
    let outside = |said: &str| Some(said.split_once(" is not in ")?.1.to_owned());
    let least_and_most = inner.and_then(outside).or_else(|| {
        let probe = Command::new("probe")
            .arg(Arg::new("value").value_parser(arg.get_value_parser().clone()));
        let mut said = ["0", "18446744073709551615"].iter().filter_map(|value| {
            let error = probe.clone().try_get_matches_from(["probe", value]).err()?;
            outside(&std::error::Error::source(&error)?.to_string())
        });
        said.next()
    });
    if let Some(range) = least_and_most {
        let (least, most) = range.split_once("..").unwrap_or((&range, ""));
        return Some(match most.trim_start_matches('=') {
            "" => format!("give a whole number from {least}"),
            most => format!("give a whole number from {least} to {most}"),
        });
    }
    let kind = arg.get_value_parser().type_id();
    let most = [
        (TypeId::of::<u8>(), u64::from(u8::MAX)),
        (TypeId::of::<u16>(), u64::from(u16::MAX)),
        (TypeId::of::<u32>(), u64::from(u32::MAX)),
        (TypeId::of::<u64>(), u64::MAX),
        (TypeId::of::<usize>(), usize::MAX as u64),
    ];
    let whole = most.iter().find(|(one, _)| kind == *one);
    let whole = whole.map(|(_, most)| format!("give a whole number from 0 to {most}"));
    let real = kind == TypeId::of::<f64>();
    whole.or_else(|| real.then(|| "give a number, for example 0.5".to_owned()))
}

/// The first thing that the parser says, without its tips.
fn plain(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let first = text.lines().next().unwrap_or_default();
    first.trim_start_matches("error: ").to_owned()
}

/// True if the parser means this argument by `--every <N>`, `<WHAT>` or `[VERSION]`.
fn shown(arg: &Arg, said: &str) -> bool {
    let word = said.split([' ', '=']).next().unwrap_or_default();
    match arg.get_long() {
        Some(long) => word.trim_end_matches('.') == format!("--{long}"),
        None => {
            let bare = word.trim_matches(['<', '>', '[', ']', '.']);
            let names = arg.get_value_names().unwrap_or_default();
            !word.starts_with('-') && names.iter().any(|name| name.as_str() == bare)
        }
    }
}

fn name(arg: &Arg) -> String {
    let positional = || arg.get_value_names().map(|names| names[0].to_string());
    let long = arg.get_long().map(str::to_owned);
    long.or_else(positional).unwrap_or_default()
}

fn dashed(arg: &Arg) -> String {
    match arg.get_long() {
        Some(long) => format!("--{long}"),
        None => name(arg),
    }
}

fn one_of(words: &[impl AsRef<str>]) -> String {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    match words.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<String> {
    texts(error, kind).into_iter().next()
}

fn texts(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
