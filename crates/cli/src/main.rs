//! Command line tool `nsbridge`.

mod ask;
mod batch;
mod bundled;
mod completions;
mod demo;
mod dev;
mod doctor;
mod failure;
mod gateway;
mod handler;
mod health;
mod import;
mod init;
mod keys;
mod local;
mod man;
mod model;
mod parity;
mod place;
mod plan;
mod progress;
mod prompt;
mod proxy;
mod queue;
mod scaler;
mod simulate;
mod stream;
mod terminal;
mod top;
mod usage;
mod version;
mod worker;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

/// Runs language models as workers on a message queue, encrypted end to end.
#[derive(Debug, Parser)]
#[command(
    name = "nsbridge",
    version,
    long_version = version::long(),
    propagate_version = true,
    max_term_width = 100
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Arguments),
    Dev(dev::Arguments),
    Init(init::Arguments),
    Worker(worker::Arguments),
    Handler(handler::Arguments),
    Ask(ask::Arguments),
    Batch(batch::Arguments),
    Gateway(gateway::Arguments),
    Proxy(proxy::Arguments),
    Keys(keys::Arguments),
    Model(model::Arguments),
    Parity(parity::Arguments),
    Scaler(scaler::Arguments),
    Simulate(simulate::Arguments),
    ImportDjl(import::djl::Arguments),
    ImportVllm(import::vllm::Arguments),
    Plan(plan::Arguments),
    Queue(queue::Arguments),
    Top(top::Arguments),
    Doctor(doctor::Arguments),
    Health(health::Arguments),
    Completions(completions::Arguments),
    #[command(hide = true)]
    Man(man::Arguments),
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage::report(&error),
    };
    if place::has_password(std::env::args()) {
        failure::note(
            "the password in --broker can be read by all users of this machine in its list of \
             processes: put the address into NSBRIDGE_BROKER__URL",
        );
    }
    let done = match arguments.command {
        Command::Demo(arguments) => demo::run(arguments),
        Command::Dev(arguments) => dev::run(arguments),
        Command::Init(arguments) => init::run(arguments),
        Command::Worker(arguments) => worker::run(arguments),
        Command::Handler(arguments) => handler::run(arguments),
        Command::Ask(arguments) => ask::run(arguments),
        Command::Batch(arguments) => batch::run(arguments),
        Command::Gateway(arguments) => gateway::run(arguments),
        Command::Proxy(arguments) => proxy::run(arguments),
        Command::Keys(arguments) => keys::run(arguments),
        Command::Model(arguments) => model::run(arguments),
        Command::Parity(arguments) => parity::run(arguments),
        Command::Scaler(arguments) => scaler::run(arguments),
        Command::Simulate(arguments) => simulate::run(arguments),
        Command::ImportDjl(arguments) => import::djl::run(arguments),
        Command::ImportVllm(arguments) => import::vllm::run(arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Queue(arguments) => queue::run(arguments),
        Command::Top(arguments) => top::run(arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Health(arguments) => health::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments, Arguments::command()),
        Command::Man(arguments) => man::run(&arguments, Arguments::command()),
    };
    let code = match done {
        Ok(code) => code,
        Err(error) => failure::report(&error),
    };
    nsbridge::flush_log();
    code
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Arguments::command().debug_assert();
    }
}
