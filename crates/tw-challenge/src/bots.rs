//! Crawlers that are known by their names: the name of the client's address (PTR) has to end in one of the configured names, and that
//! name has to have the address.
//!
//! Only a client whose `User-Agent` says that it is a program is looked up, so no person waits for name servers.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tw_base::FatalMutex;
use tw_conf::{ConfError, Node, Word};
use tw_http::HeaderName;
use tw_module_support::zone::ZoneTable;
use tw_request::request::Request;

/// Lifetime of a positive result: crawlers keep their addresses.
const VERIFIED_LIFETIME: Duration = Duration::from_secs(3600);
/// Lifetime of a negative result, which may come from a name server that was down.
const UNVERIFIED_LIFETIME: Duration = Duration::from_secs(300);
/// Parts of a `User-Agent`, in lower case, by which crawlers say that they are programs.
const MARKS: [&[u8]; 4] = [b"bot", b"crawl", b"spider", b"+http"];

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Clients of which challenge_except_bots remembers if they are verified.
    const BOTS_REMEMBERED_MAX: u64 = 8192, count, "the one used longest ago is looked up again";
    /// Clients that challenge_except_bots looks up at the same time.
    const BOT_LOOKUPS_MAX: usize = 64, count, "further ones are challenged";
    /// Time of challenge_except_bots for one client.
    const BOT_LOOKUP_TIME_MAX: Duration = Duration::from_secs(2), time, "it is challenged";
    /// Names of one address that challenge_except_bots checks.
    const BOT_NAMES_MAX: usize = 4, count, "the others do not count";
}

/// Names of `challenge_except_bots`, and the clients that were looked up for them. Shared by all loops.
pub(super) struct Bots {
    /// Names in lower case, without a dot in front.
    names: Box<[Box<[u8]>]>,
    remembered: FatalMutex<ZoneTable<Remembered>>,
    running: AtomicUsize,
}

/// Result of a lookup.
#[derive(Clone, Copy)]
struct Remembered {
    verdict: BotVerdict,
    until: Instant,
}

/// Result for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BotVerdict {
    /// The client has one of the names.
    Verified,
    /// The client has none, or that could not be found out.
    Unverified,
}

/// Permit for one lookup; dropping it gives it back.
struct Permit<'a>(&'a AtomicUsize);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Reads a word of `challenge_except_bots`: a domain name, with or without a dot in front.
pub(super) fn read_name(node: &Node, word: &Word) -> Result<Box<[u8]>, ConfError> {
    let name = word.bytes.strip_prefix(b".").unwrap_or(&word.bytes).to_ascii_lowercase();
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_label = |label: &[u8]| !label.is_empty() && label.iter().all(is_letter);
    if name.split(|byte| *byte == b'.').all(is_label) {
        Ok(name.into())
    } else {
        Err(node.invalid_parameter(word))
    }
}

/// Returns true if a `User-Agent` says that the client is a program.
pub(super) fn claims_to_be_bot(r: &Request) -> bool {
    let user_agent = r.head.field_known(HeaderName::UserAgent).unwrap_or_default();
    MARKS.iter().any(|mark| user_agent.windows(mark.len()).any(|part| part.eq_ignore_ascii_case(mark)))
}

impl Bots {
    /// Remembers nothing yet.
    pub(super) fn new(names: &[Box<[u8]>]) -> Self {
        Self {
            names: names.into(),
            remembered: FatalMutex::new(ZoneTable::new(BOTS_REMEMBERED_MAX)),
            running: AtomicUsize::new(0),
        }
    }

    /// Returns the remembered result for an address.
    pub(super) fn recall(&self, addr: IpAddr, now: Instant) -> Option<BotVerdict> {
        let mut remembered = self.remembered.lock();
        let id = remembered.find(&key(addr))?;
        let found_remembered = *remembered.get(id);
        if now >= found_remembered.until {
            remembered.remove(id);
            return None;
        }
        remembered.touch(id);
        Some(found_remembered.verdict)
    }

    fn remember(&self, addr: IpAddr, verdict: BotVerdict, now: Instant) {
        let until = now
            + match verdict {
                BotVerdict::Verified => VERIFIED_LIFETIME,
                BotVerdict::Unverified => UNVERIFIED_LIFETIME,
            };
        let key = key(addr);
        let mut remembered = self.remembered.lock();
        if let Some(id) = remembered.find(&key) {
            remembered.remove(id);
        }
        while remembered.insert(&key, 1, Remembered { verdict, until }).is_none() {
            match remembered.oldest() {
                Some(oldest) => remembered.remove(oldest),
                None => return,
            }
        }
    }

    /// Looks a client up. Waits for name servers, at most [`BOT_LOOKUP_TIME_MAX`].
    pub(super) async fn look_up(&self, r: &Request, addr: IpAddr) -> BotVerdict {
        if self.running.fetch_add(1, Relaxed) >= BOT_LOOKUPS_MAX {
            self.running.fetch_sub(1, Relaxed);
            return BotVerdict::Unverified;
        }
        let _permit = Permit(&self.running);
        let verdict = match tw_rt::time::timeout(BOT_LOOKUP_TIME_MAX, self.verify(r, addr)).await {
            Ok(verdict) => verdict,
            Err(_) => BotVerdict::Unverified,
        };
        self.remember(addr, verdict, tw_rt::clock::now());
        verdict
    }

    async fn verify(&self, r: &Request, addr: IpAddr) -> BotVerdict {
        let generation = r.generation().clone();
        let resolving = &generation.plan(r.route.plan).core.resolving;
        let (service, timeout) = resolving.service(true, generation.disks.default_disk().pool()).await;
        let Ok(names) = service.names(addr, timeout).await else { return BotVerdict::Unverified };
        for name in names.iter().take(BOT_NAMES_MAX).filter(|name| self.has(name.as_bytes())) {
            // Anyone can give an address of theirs any name, but not the name an address.
            if let Ok(addresses) = service.addresses(name.as_bytes(), timeout).await
                && addresses.iter().any(|ip| ip.to_canonical() == addr.to_canonical())
            {
                return BotVerdict::Verified;
            }
        }
        BotVerdict::Unverified
    }

    /// Returns true if `name`, in lower case, is one of the names or below one.
    fn has(&self, name: &[u8]) -> bool {
        self.names.iter().any(|candidate| {
            name.strip_suffix(&**candidate).is_some_and(|front| front.is_empty() || front.ends_with(b"."))
        })
    }
}

fn key(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped().octets(),
        IpAddr::V6(addr) => addr.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bots() -> Bots {
        Bots::new(&[b"googlebot.com"[..].into(), b"search.msn.com"[..].into()])
    }

    #[test]
    fn names_are_compared_by_labels() {
        for (name, expected) in [
            ("crawl-1.googlebot.com", true),
            ("googlebot.com", true),
            ("evilgooglebot.com", false),
            ("googlebot.com.evil.example", false),
            ("msn.com", false),
            ("msnbot-1.search.msn.com", true),
        ] {
            assert_eq!(bots().has(name.as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn results_are_remembered_for_a_while() {
        let bots = bots();
        let now = Instant::now();
        let [one, other] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        bots.remember(one, BotVerdict::Verified, now);
        bots.remember(one, BotVerdict::Unverified, now);
        bots.remember(other, BotVerdict::Verified, now);
        assert_eq!(bots.recall(one, now), Some(BotVerdict::Unverified));
        assert_eq!(bots.recall(one, now + UNVERIFIED_LIFETIME), None);
        assert_eq!(bots.recall(other, now + UNVERIFIED_LIFETIME), Some(BotVerdict::Verified));
        assert_eq!(bots.recall("::ffff:192.0.2.2".parse().unwrap(), now), Some(BotVerdict::Verified));
        assert_eq!(bots.recall(other, now + VERIFIED_LIFETIME), None);
    }

    #[test]
    fn number_of_remembered_clients_is_bounded() {
        let bots = bots();
        let now = Instant::now();
        let addr = |n: u64| IpAddr::V6(std::net::Ipv6Addr::from_bits(n.into()));
        for n in 0..BOTS_REMEMBERED_MAX + 10 {
            bots.remember(addr(n), BotVerdict::Verified, now);
        }
        assert_eq!(bots.recall(addr(9), now), None);
        assert_eq!(bots.recall(addr(10), now), Some(BotVerdict::Verified));
    }
}
