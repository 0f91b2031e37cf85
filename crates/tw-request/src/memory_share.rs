//! Memory that clients hold on this loop: by connection, and by address and protocol. The account of the process
//! ([`tw_base::memory`]) has the sums.
//!
//! ```text
//! Hold: a request, or bytes that wait for its client ─► share of the connection ─► share of the address ─► account
//! ```
//! Nothing is counted in a process whose memory has no bound.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::{Rc, Weak};

use tw_base::memory::{self, MemoryHolder};
use tw_net::Addr;

/// Bits of an IPv6 address that stand for one client: what a provider gives to one.
const NETWORK: u128 = u128::MAX << 64;

/// Clients that count as one: an address and a protocol. All clients of Unix sockets are one.
type Key = (Option<IpAddr>, MemoryHolder);

thread_local! {
    static ADDRESSES: RefCell<HashMap<Key, Weak<AddressShare>, foldhash::fast::RandomState>> = RefCell::default();
}

/// Memory that the clients of one address hold with one protocol.
struct AddressShare {
    key: Key,
    bytes: Cell<usize>,
}

/// Memory that the client of one connection holds.
pub struct MemoryShare {
    bytes: Cell<usize>,
    address: Rc<AddressShare>,
}

impl MemoryShare {
    /// Share of a new connection.
    pub fn new(peer: &Addr, protocol: MemoryHolder) -> Rc<Self> {
        let key = (peer.inet().map(|inet| client_of(inet.ip())), protocol);
        let address = ADDRESSES.with_borrow_mut(|all| {
            let address_share = all.get(&key).and_then(Weak::upgrade);
            address_share.unwrap_or_else(|| {
                let new = Rc::new(AddressShare { key, bytes: Cell::new(0) });
                all.insert(key, Rc::downgrade(&new));
                new
            })
        });
        Rc::new(Self { bytes: Cell::new(0), address })
    }

    /// Bytes that the client of the connection holds.
    pub fn held_bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Bytes that all clients of the address hold with this protocol, on this loop.
    pub fn held_by_address(&self) -> usize {
        self.address.bytes.get()
    }

    fn change(&self, from: usize, to: usize) {
        for bytes in [&self.bytes, &self.address.bytes] {
            bytes.set(bytes.get() + to - from);
        }
        memory::count_held(self.address.key.1, to.cast_signed() - from.cast_signed());
    }
}

impl Drop for AddressShare {
    fn drop(&mut self) {
        // When a thread ends, its table may be gone already.
        let _ = ADDRESSES.try_with(|all| {
            let mut all = all.borrow_mut();
            // A newer entry may be in its place.
            if all.get(&self.key).is_some_and(|candidate| candidate.strong_count() == 0) {
                all.remove(&self.key);
            }
            if all.is_empty() {
                all.shrink_to_fit();
            }
        });
    }
}

/// Address that stands for one client.
fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & NETWORK).into()),
        address => address,
    }
}

/// Memory that a client holds until this is dropped.
#[derive(Default)]
pub struct Hold {
    share: Option<Rc<MemoryShare>>,
    bytes: usize,
}

impl Hold {
    /// So many bytes of a share; nothing without one.
    pub fn new(share: Option<&Rc<MemoryShare>>, bytes: usize) -> Self {
        let mut hold = Self { share: share.cloned(), bytes: 0 };
        hold.set(bytes);
        hold
    }

    /// Holds so many bytes from now on.
    pub fn set(&mut self, bytes: usize) {
        if let Some(share) = &self.share
            && bytes != self.bytes
        {
            share.change(self.bytes, bytes);
            self.bytes = bytes;
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(address: &str, protocol: MemoryHolder) -> Rc<MemoryShare> {
        MemoryShare::new(&Addr::Inet(format!("{address}:80").parse().unwrap()), protocol)
    }

    #[test]
    fn connections_of_an_address_share_by_protocol() {
        let one = share("192.0.2.1", MemoryHolder::Http1);
        let two = share("192.0.2.1", MemoryHolder::Http1);
        let other = share("192.0.2.2", MemoryHolder::Http1);
        let third = share("192.0.2.1", MemoryHolder::Http2);
        let mut hold = Hold::new(Some(&one), 100);
        let more = Hold::new(Some(&two), 7);
        hold.set(40);
        assert_eq!((one.held_bytes(), one.held_by_address()), (40, 47));
        assert_eq!((two.held_bytes(), two.held_by_address()), (7, 47));
        assert_eq!((other.held_by_address(), third.held_by_address()), (0, 0));
        drop((hold, more));
        assert_eq!((one.held_bytes(), two.held_by_address()), (0, 0));
        drop((one, two, other, third));
        assert_eq!(ADDRESSES.with_borrow(HashMap::len), 0);
        Hold::default().set(5);
    }

    #[test]
    fn networks_of_ipv6_count_as_one_client() {
        let one = share("[2001:db8::1]", MemoryHolder::Http3);
        let _hold = Hold::new(Some(&one), 5);
        assert_eq!(share("[2001:db8::2:1]", MemoryHolder::Http3).held_by_address(), 5);
        assert_eq!(share("[2001:db8:0:1::1]", MemoryHolder::Http3).held_by_address(), 0);
        let mapped = share("[::ffff:192.0.2.1]", MemoryHolder::Http3);
        let _hold = Hold::new(Some(&mapped), 5);
        assert_eq!(share("192.0.2.1", MemoryHolder::Http3).held_by_address(), 5);
    }
}
