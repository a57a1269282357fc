//! Ports that nobody else is given.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context, Result};

/// Below those that a system gives to whoever asks for any (on Linux 32,768 and up), or another
/// process's connection would have one by the time that the node wants it, and above RabbitMQ's
/// own 25,672.
const FIRST: u16 = 26_000;

const BLOCK: u16 = 4;
const BLOCKS: u16 = 1_500;

/// Three ports, for as long as it lives: who else takes ports here passes them over.
#[derive(Debug)]
pub(super) struct Ports {
    pub(super) numbers: [u16; 3],
    /// The port in front of them, held open to show that the block is taken. The three themselves
    /// are closed while their node is, which may come back.
    _taken: TcpListener,
}

impl Ports {
    /// # Errors
    ///
    /// None are left.
    pub(super) fn take() -> Result<Self> {
        // Processes begin in different places, so that few have to look twice.
        let start = std::process::id() % u32::from(BLOCKS);
        let blocks = (0..BLOCKS).map(|k| (k + start as u16) % BLOCKS * BLOCK + FIRST);
        let mut free = blocks.filter_map(Self::block);
        free.next().context("every port from 26000 to 31999 is taken: end some RabbitMQ nodes")
    }

    fn block(first: u16) -> Option<Self> {
        let numbers = [first + 1, first + 2, first + 3];
        let taken = bind(first)?;
        numbers.iter().all(|port| bind(*port).is_some()).then_some(Self { numbers, _taken: taken })
    }
}

fn bind(port: u16) -> Option<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_of_one_until_it_is_let_go() {
        let ours = Ports::take().unwrap();
        let first = ours.numbers[0] - 1;
        assert!(Ports::block(first).is_none());
        assert_ne!(Ports::take().unwrap().numbers, ours.numbers);
        drop(ours);

        let somebody = bind(first + 2).unwrap();
        assert!(Ports::block(first).is_none());
        drop(somebody);
        assert!(Ports::block(first).is_some());
    }
}
