//! `outlive balance` by itself: `cargo run -p outlive-balance --example
//! outlive-balance -- --help`.

#[path = "../../cli/src/balance.rs"]
mod balance;

use clap::Parser;

#[derive(Parser)]
#[command(name = "outlive-balance")]
struct Command {
    #[command(flatten)]
    balance: balance::Balance,
}

fn main() -> std::process::ExitCode {
    match balance::run(&Command::parse().balance) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::from(error.code().exit_status())
        }
    }
}
