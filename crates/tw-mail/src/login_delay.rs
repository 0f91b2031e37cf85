//! `failed_login_delay`: a pause before the reply to a refused login, which grows with the refused logins of the client's address.
//!
//! All loops share the numbers, and a configuration takes over those of the one before.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tw_base::FatalMutex;
use tw_conf::{Args, ConfError, Directive, MAIL, MAIL_SERVER, Node, Setting, record, units};
use tw_core::load::Resolve;
use tw_core::module::Settings;
use tw_net::Addr;

use crate::protocol::Mail;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Pause before the reply to a refused login.
    parameter "failed_login_delay", "max=", "60s", "it does not grow any more";
    /// Addresses whose refused logins are counted.
    const ADDRESSES_MAX: usize = 16_384, count, "the one that was refused the longest ago is forgotten";
    /// Time after its last refused login for which an address is remembered.
    const MEMORY: Duration = Duration::from_secs(900), time, "the address is forgotten";
}

/// Longest pause, unless `max=` says otherwise.
const DELAY_MAX: Duration = Duration::from_secs(60);

/// Pause of a server; `None` if it is off.
pub struct LoginDelay {
    own: Option<Delay>,
    failures: Arc<FailedLogins>,
}

/// First and longest pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Delay {
    first: Duration,
    max: Duration,
}

/// The directive as written.
#[derive(Default)]
pub struct Raw(Setting<Option<Delay>>);

impl Settings<Mail> for LoginDelay {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] =
        &[record::new("failed_login_delay", "off | time [max=time]", MAIL | MAIL_SERVER, Args::range(1, 2))
            .default("off")
            .since("Tailwater 0.2")
            .doc("Pause before the reply to a refused login. It doubles with each further refused login of the same address, up to max (60s), and is forgotten after a login that is accepted, or 15 minutes.")
            .set(|raw, node, _| raw.0.set_with(node, read))];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_, Mail>) -> Result<Self, ConfError> {
        let failures = match outer {
            Some(outer) => outer.failures.clone(),
            None => cx.keep(b"failed logins", |_| true, FailedLogins::default),
        };
        Ok(Self { own: raw.0.or(outer.map(|outer| outer.own), None), failures })
    }
}

/// Reads the arguments.
fn read(node: &Node) -> Result<Option<Delay>, ConfError> {
    let word = node.arg(0)?;
    if word.is("off") {
        return match node.args.get(1) {
            None => Ok(None),
            Some(word) => Err(node.invalid_parameter(word)),
        };
    }
    let first = word.msec().ok_or_else(|| node.invalid_value(word))?;
    let max = match node.args.get(1) {
        None => DELAY_MAX,
        Some(word) => word.param("max").and_then(units::msec).ok_or_else(|| node.invalid_parameter(word))?,
    };
    Ok(Some(Delay { first, max }))
}

impl LoginDelay {
    /// Counts a refused login, and returns the pause before the reply.
    pub(crate) fn refused(&self, addr: &Addr, now: Instant) -> Duration {
        let (Some(delay), Some(addr)) = (self.own, addr.inet()) else { return Duration::ZERO };
        let failures = self.failures.count(network(addr.ip()), now);
        let factor = 1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        delay.first.saturating_mul(factor).min(delay.max)
    }

    /// Forgets the refused logins of an address.
    pub(crate) fn accepted(&self, addr: &Addr) {
        if let (Some(_), Some(addr)) = (self.own, addr.inet()) {
            self.failures.forget(network(addr.ip()));
        }
    }
}

/// Address of a client, of IPv6 the network that a customer gets.
fn network(addr: IpAddr) -> IpAddr {
    match addr {
        IpAddr::V4(_) => addr,
        IpAddr::V6(addr) => IpAddr::V6((addr.to_bits() >> 64 << 64).into()),
    }
}

/// Refused logins by address.
#[derive(Default)]
struct FailedLogins(FatalMutex<HashMap<IpAddr, Failures>>);

/// Refused logins of one address.
struct Failures {
    count: u32,
    last: Instant,
}

impl FailedLogins {
    /// Counts one, and returns the number.
    fn count(&self, addr: IpAddr, now: Instant) -> u32 {
        let mut known_values = self.0.lock();
        if known_values.len() >= ADDRESSES_MAX && !known_values.contains_key(&addr) {
            known_values.retain(|_, failures| now.saturating_duration_since(failures.last) < MEMORY);
            let oldest = known_values.iter().min_by_key(|(_, failures)| failures.last).map(|(addr, _)| *addr);
            if let Some(oldest) = oldest.filter(|_| known_values.len() >= ADDRESSES_MAX) {
                known_values.remove(&oldest);
            }
        }
        let failures = known_values.entry(addr).or_insert(Failures { count: 0, last: now });
        if now.saturating_duration_since(failures.last) >= MEMORY {
            failures.count = 0;
        }
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
        failures.count
    }

    fn forget(&self, addr: IpAddr) {
        self.0.lock().remove(&addr);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> Addr {
        Addr::Inet(text.parse().unwrap())
    }

    #[test]
    fn pause_doubles_up_to_its_limit() {
        let own = Some(Delay { first: Duration::from_secs(1), max: Duration::from_secs(5) });
        let delay = LoginDelay { own, failures: Arc::default() };
        let now = Instant::now();
        let refused = |text: &str, at: Instant| delay.refused(&addr(text), at).as_secs();
        let pauses: Vec<_> = (0..5).map(|_| refused("192.0.2.1:1", now)).collect();
        assert_eq!(pauses, [1, 2, 4, 5, 5]);
        assert_eq!(refused("192.0.2.2:1", now), 1, "another address");
        delay.accepted(&addr("192.0.2.1:9"));
        assert_eq!(refused("192.0.2.1:1", now), 1, "after a login");
        assert_eq!(refused("192.0.2.1:1", now + MEMORY), 1, "after a long time");
        assert_eq!(refused("[2001:db8::1]:1", now), 1);
        assert_eq!(refused("[2001:db8::2]:1", now), 2, "the same network");
    }

    #[test]
    fn table_is_bounded() {
        let failures = FailedLogins::default();
        let now = Instant::now();
        for number in 0..ADDRESSES_MAX as u32 + 100 {
            failures.count(IpAddr::V4(number.into()), now + Duration::from_millis(number.into()));
        }
        assert_eq!(failures.0.lock().len(), ADDRESSES_MAX);
        assert_eq!(failures.count(IpAddr::V4(0.into()), now), 1, "the oldest was forgotten");
    }
}
