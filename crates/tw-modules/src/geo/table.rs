//! The look-up of `geo`: addresses to values. Independent of the protocol.

use std::net::IpAddr;

use super::intervals::Intervals;

/// Values by address.
#[derive(Debug, Default)]
pub(crate) struct GeoTable {
    pub(super) v4: Intervals<u32>,
    pub(super) v6: Intervals<u128>,
    /// All values, each once.
    pub(super) values: Vec<Box<[u8]>>,
    /// Value of addresses without another one.
    pub(super) default: Option<u32>,
}

impl GeoTable {
    /// The value of an address; `None` stands for a client that has none, or for text that is no address, which nginx
    /// takes for 255.255.255.255.
    pub(crate) fn find(&self, addr: Option<IpAddr>) -> &[u8] {
        let found = match addr.map(|addr| addr.to_canonical()) {
            Some(IpAddr::V4(addr)) => self.v4.find(addr.to_bits()),
            Some(IpAddr::V6(addr)) => self.v6.find(addr.to_bits()),
            None => self.v4.find(u32::MAX),
        };
        let value = found.or(self.default).and_then(|at| self.values.get(at as usize));
        value.map(|value| &**value).unwrap_or_default()
    }
}
