//! Exclusive allocation of ports for RabbitMQ nodes.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context, Result};

/// First port of the range. It lies below the ephemeral ports of the system (on Linux 32,768 and
/// up), which another process's connection could take before the node binds them, and above
/// RabbitMQ's own 25,672.
const FIRST: u16 = 26_000;

const BLOCK: u16 = 5;
const BLOCKS: u16 = 1_200;

/// Block of four ports, reserved while it lives; other processes that use this allocator skip it.
#[derive(Debug)]
pub(super) struct Ports {
    pub(super) numbers: [u16; 4],
    /// Listener on the port before the four, which marks the block as taken. The four ports
    /// themselves stay free, because the node binds them and may restart.
    _taken: TcpListener,
}

impl Ports {
    /// Reserves a block of four free ports.
    ///
    /// # Errors
    ///
    /// Returns an error if no block is left.
    pub(super) fn take() -> Result<Self> {
        // Processes start at different blocks, so few collide.
        let start = std::process::id() % u32::from(BLOCKS);
        let blocks = (0..BLOCKS).map(|k| (k + start as u16) % BLOCKS * BLOCK + FIRST);
        let mut free = blocks.filter_map(Self::block);
        free.next().context("every port from 26000 to 31999 is taken: end some RabbitMQ nodes")
    }

    fn block(first: u16) -> Option<Self> {
        let numbers = [first + 1, first + 2, first + 3, first + 4];
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
