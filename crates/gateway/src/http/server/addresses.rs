//! Connections by the address of their client, of which none may have all places.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// Connections of each client: an IPv4 address, or an IPv6 network of 64 bits, which one host has.
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    most: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// Connection that counts until it is dropped.
#[derive(Debug)]
pub(super) struct Counted {
    client: IpAddr,
    of: Addresses,
}

impl Addresses {
    pub(super) fn new(most: usize) -> Self {
        Self { most, open: Arc::default() }
    }

    /// Counts a connection; `None` if its client has as many as it may have.
    pub(super) fn count(&self, address: IpAddr) -> Option<Counted> {
        let client = client(address);
        let mut open = self.open.lock();
        let own = open.entry(client).or_default();
        if *own >= self.most {
            return None;
        }
        *own += 1;
        Some(Counted { client, of: self.clone() })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut open = self.of.open.lock();
        if let Some(own) = open.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.client);
            }
        }
    }
}

/// Returns the address that stands for all addresses of a client.
fn client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & (u128::MAX << 64)).into()),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::Addresses;

    #[test]
    fn m2_an_address_has_a_share_of_the_places() {
        let addresses = Addresses::new(2);
        let count = |address: &str| addresses.count(address.parse().unwrap());
        let held = [count("10.0.0.1"), count("::ffff:10.0.0.1")];
        assert!(held.iter().all(Option::is_some) && count("10.0.0.1").is_none());
        assert!(count("10.0.0.2").is_some());
        let network = [count("2001:db8::1"), count("2001:db8::ffff:1")];
        assert!(network.iter().all(Option::is_some) && count("2001:db8::2").is_none());
        assert!(count("2001:db8:0:1::1").is_some());
        drop(held);
        assert!(count("10.0.0.1").is_some());
        drop(network);
        assert!(addresses.open.lock().is_empty());
    }
}
