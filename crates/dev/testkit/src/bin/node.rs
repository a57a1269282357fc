//! Runs a private RabbitMQ node until standard input ends.

use std::io::Read;

use nsbridge_testkit::Rabbit;

#[expect(clippy::print_stdout, reason = "the address is what this prints")]
fn main() -> anyhow::Result<()> {
    let rabbit = Rabbit::start()?;
    println!("NSBRIDGE_TEST_AMQP_URL={}", rabbit.url());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
