//! Every option of every command with every kind of wrong value: the answer must help
//! somebody who has never seen the command.

use clap::FromArgMatches;

use super::*;
use crate::args::{Cli, Command as Chosen};
use crate::config::{Config, KEYS};

fn answer(words: &[String]) -> Result<Cli, Error> {
    let words: Vec<OsString> = std::iter::once("outlive".to_owned())
        .chain(words.iter().cloned())
        .map(OsString::from)
        .collect();
    let command = crate::args::command();
    let parsed = command.clone().try_get_matches_from(&words);
    let cli = parsed.and_then(|matches| Cli::from_arg_matches(&matches));
    cli.map_err(|error| explain(&error, &command, &words))
}

/// As [`answer`], and `run` makes its plan, in which most of its values are looked at.
fn planned(words: &[String]) -> Result<(), Error> {
    match answer(words)?.command {
        Chosen::Run(options) => {
            let config = Config::load(&options.settings, None)?;
            crate::run::plan(&config, *options).map(drop)
        }
        _ => Ok(()),
    }
}

/// All commands that do something, and their way.
fn leaves(command: &Command, path: &[String]) -> Vec<(Vec<String>, Command)> {
    let mut found = Vec::new();
    let visible = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    for sub in visible {
        let path: Vec<String> = path
            .iter()
            .cloned()
            .chain([sub.get_name().into()])
            .collect();
        match sub.has_subcommands() {
            true => found.extend(leaves(sub, &path)),
            false => found.push((path, sub.clone())),
        }
    }
    found
}

/// What a command needs besides the option that is looked at.
fn needed(command: &Command, but: &Arg) -> Vec<String> {
    let needed = command.get_arguments().filter(|arg| arg.is_required_set());
    let mut words = Vec::new();
    for arg in needed.filter(|arg| arg.get_id() != but.get_id() && !arg.is_last_set()) {
        words.extend(arg.get_long().map(|long| format!("--{long}")));
        let parser = arg.get_value_parser();
        let first = parser
            .possible_values()
            .and_then(|mut values| values.next());
        words.push(first.map_or("1".into(), |value| value.get_name().to_owned()));
    }
    words
}

fn ended(command: &Command) -> Vec<String> {
    let runs = command.get_arguments().any(Arg::is_last_set);
    let words: &[&str] = if runs { &["--", "true"] } else { &[] };
    words.iter().map(ToString::to_string).collect()
}

/// What is wrong with an answer; nothing if it helps.
fn faults(words: &[String], name: &str) -> Option<String> {
    let Err(error) = planned(words) else {
        return Some(format!("{words:?} is taken"));
    };
    let said = format!(
        "{}: {} ({})",
        error.entity(),
        error.reason(),
        error.remedy()
    );
    let named = format!("{}: {}", error.entity(), error.reason()).contains(name);
    let misleading = [
        "'-- ",
        "tip:",
        "to pass",
        "invalid digit",
        "were not provided",
    ];
    let misleads = misleading.iter().any(|word| said.contains(word));
    let coded = error.code() == Code::InvalidArgument && error.code().exit_status() == 64;
    let helps = coded && named && !misleads && error.remedy().len() > 3;
    (!helps).then(|| format!("{words:?}: {said}"))
}

#[test]
fn every_option_with_every_wrong_value() {
    let (mut tried, mut wrong) = (0, Vec::new());
    for (path, command) in leaves(&crate::args::command(), &[]) {
        let asks = |arg: &&Arg| arg.get_id() == "help" || arg.get_id() == "version";
        for arg in command
            .get_arguments()
            .filter(|arg| !arg.is_hide_set() && !asks(arg))
        {
            let Some(long) = arg.get_long() else { continue };
            for words in mistakes(&path, &command, arg, long) {
                tried += 1;
                wrong.extend(faults(&words, long));
            }
            // A letter is missing.
            let option = format!("--{long}");
            let near = &option[..option.len() - 1];
            let words = around(&path, &command, arg, &[near]);
            let known = |arg: &Arg| arg.get_long() == near.strip_prefix("--");
            if long.len() > 4 && !command.get_arguments().any(known) {
                wrong.extend(faults(&words, near));
                let told = planned(&words).map_err(|error| error.remedy().to_owned());
                let meant = |told: &String| told.starts_with("did you mean --");
                wrong.extend(told.err().filter(|told| !meant(told)));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {tried}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(tried > 300, "{tried}");
}

/// The command with these words for an option, and what else it needs.
fn around(path: &[String], command: &Command, arg: &Arg, words: &[&str]) -> Vec<String> {
    let words = words.iter().map(ToString::to_string);
    let before = path.iter().cloned().chain(needed(command, arg));
    before.chain(words).chain(ended(command)).collect()
}

/// Ways to get an option wrong.
fn mistakes(path: &[String], command: &Command, arg: &Arg, long: &str) -> Vec<Vec<String>> {
    let option = format!("--{long}");
    let with = |words: &[&str]| around(path, command, arg, words);
    let glued = |value: &str| with(&[&format!("{option}={value}")]);
    let often = matches!(
        arg.get_action(),
        clap::ArgAction::Append | clap::ArgAction::Count
    );
    let mut wrong = Vec::new();
    if !arg.get_action().takes_values() {
        wrong.push(glued("5"));
        wrong.extend((!often).then(|| with(&[&option, &option])));
        return wrong;
    }
    if arg
        .get_num_args()
        .is_none_or(|range| range.min_values() > 0)
    {
        let mut missing = with(&[&option]);
        missing.truncate(missing.len() - ended(command).len());
        wrong.push(missing);
    }
    wrong.push(glued(""));
    let key = KEYS.iter().any(|key| key.name == long) && path == ["run"];
    // Paths and commands: what is no such thing may come to be.
    let path = ["store", "node-storage", "metrics", "daemon"].contains(&long);
    let chosen = arg.get_value_parser().possible_values().is_some();
    let looked_at = chosen || is_number(arg) || (key && !path);
    let values = ["-5", "99999999999999999999999", "no such thing", "@v=3"];
    // A real number may be negative, and any size.
    let values = values
        .iter()
        .filter(|value| looked_at && !(is_real(arg) && value.parse::<f64>().is_ok()));
    wrong.extend(values.clone().map(|value| glued(value)));
    wrong.extend(values.map(|value| with(&[&option, value])));
    let possible = arg
        .get_value_parser()
        .possible_values()
        .and_then(|mut all| all.next());
    let usual = possible.map_or("3".to_owned(), |value| value.get_name().to_owned());
    if !often {
        wrong.push(with(&[&option, &usual, &option, &usual]));
    }
    wrong
}

fn is_real(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == TypeId::of::<f64>()
}

fn is_number(arg: &Arg) -> bool {
    is_real(arg) || number(arg, None).is_some()
}

/// What real people wrote, and what they were told to write instead.
#[test]
fn the_remedy_is_what_was_meant() {
    let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
    for (wrote, named, told) in [
        ("run --every -5 -- true", "option every", "from 1 to"),
        (
            "run --lose node:1 -- true",
            "'--lose'",
            "outlive checkpoints rehearse",
        ),
        ("run --evry 5 -- true", "'--evry'", "did you mean --every?"),
        (
            "run --every 5 mpirun -n 4 ./app",
            "'mpirun'",
            "write outlive run --every 5 -- mpirun -n 4 ./app",
        ),
        (
            "run ./app --verbose",
            "'./app'",
            "write outlive run -- ./app --verbose",
        ),
        ("run --every 5", "<COMMAND>", "outlive run -- mpirun"),
        (
            "run --inject node:0@v=3 -- true",
            "option inject",
            "@version=3",
        ),
        (
            "run --inject rank:1@ver=40 -- true",
            "option inject",
            "@version=40",
        ),
        (
            "run --inject node:0@5 -- true",
            "option inject",
            "@version=5",
        ),
        ("run --levels mem -- true", "option levels", "memory"),
        ("run --quiet -v -- true", "--quiet", "one of them"),
        ("checkpoints show @v=3", "VERSION", "whole number"),
        ("checkpoints show -3", "VERSION", "whole number"),
        ("checkpoints rehearse --lose", "option lose", "--lose NODES"),
        ("checkpoints remove heat", "'remove'", "delete"),
        ("bench sav", "'sav'", "did you mean save?"),
        ("bench save --mib -5", "option mib", "from 1 to 16777216"),
        ("rnu -- ./app", "'rnu'", "did you mean outlive run?"),
        (
            "mpirun -n 8 ./app",
            "'mpirun'",
            "outlive run -- mpirun -n 8 ./app",
        ),
        ("status heat", "'heat'", "--job heat"),
    ] {
        let error = planned(&words(wrote)).expect_err(wrote);
        assert_eq!(faults(&words(wrote), named), None);
        assert!(error.remedy().contains(told), "{wrote}: {}", error.remedy());
    }
}
