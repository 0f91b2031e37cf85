//! Session tickets, sealed with keys that all threads share (RFC 5077, section 4).
//!
//! ```text
//! key name (16) · initialisation vector (16) · AES-CBC (time · state) · HMAC-SHA-256 of all in front of it (32)
//!
//! random keys:  made ─ lifetime, seals ─► next one made ─ lifetime, opens only ─► wiped
//! keys of files (`ssl_session_ticket_key`): the first seals, all open, none ever changes
//! ```
//!
//! keys of a fleet (`SharedSecrets`): the one whose time has come seals, all open; without one that is recent, a random key seals
//!
//! A ticket ends with its time also where its key stays. Random keys can be given to a successor process.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::cipher::{
    AES_128, AES_256, DecryptionContext, PaddedBlockDecryptingKey, PaddedBlockEncryptingKey, UnboundCipherKey,
};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::{hmac, rand};
use rustls::server::ProducesTickets;
use tw_base::FatalMutex;
use zeroize::Zeroizing;

use crate::Clock;
use crate::shared_secrets::{SharedSecret, SharedSecrets};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Keys of session tickets.
    ///
    /// Limit of key files. Two or three are needed for a rotation.
    const TICKET_KEYS_MAX: usize = 100, count, "the configuration is refused";
}

const NAME: usize = 16;
const IV: usize = 16;
const MAC: usize = 32;
const TIME: usize = 8;
/// A key file with AES-256: name, key of the HMAC, key of AES. A random key looks the same.
const LONG: usize = 80;
/// A key file with AES-128: name, key of AES, key of the HMAC.
const SHORT: usize = 48;
/// The first byte of what a successor gets; it reads no other.
const FORMAT: u8 = 1;

/// Why there are no keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TicketError {
    /// The file of this number, from 1, has neither 48 nor 80 bytes.
    BadSize(usize),
    /// More files than this.
    TooMany(usize),
    /// No file.
    None,
    /// State of a predecessor that is of another version, or truncated.
    BadState,
    /// The system has no random numbers, or the library failed.
    Failed,
}

impl fmt::Display for TicketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadSize(number) => write!(f, "session ticket key file {number} must be 48 or 80 bytes"),
            Self::TooMany(max) => write!(f, "more than {max} session ticket keys"),
            Self::None => f.write_str("no session ticket key"),
            Self::BadState => f.write_str("session ticket keys of another version"),
            Self::Failed => f.write_str("could not make a session ticket key"),
        }
    }
}

impl std::error::Error for TicketError {}

impl From<Unspecified> for TicketError {
    fn from(_: Unspecified) -> Self {
        Self::Failed
    }
}

/// Seals and opens tickets.
pub struct Tickets {
    /// The first key seals. The list is replaced as a whole, so the lock is never held while sealing.
    keys: FatalMutex<Arc<[Arc<Secret>]>>,
    origin: Origin,
    shared: Option<SharedKeys>,
    /// Seconds.
    lifetime: u32,
    clock: Clock,
}

/// Keys of secrets that other servers have, too.
struct SharedKeys {
    secrets: Arc<SharedSecrets>,
    /// Keys of the version of the secrets that was used last.
    derived: FatalMutex<(u64, Arc<[Arc<Secret>]>)>,
}

impl SharedKeys {
    /// Keys of all secrets, in the order of their time.
    fn keys(&self) -> Arc<[Arc<Secret>]> {
        let mut derived = self.derived.lock();
        let version = self.secrets.version();
        if derived.0 != version {
            // A secret from which no key can be derived is of no use to any server.
            let keys = self
                .secrets
                .get()
                .iter()
                .filter_map(|secret| Secret::shared(secret).ok())
                .map(Arc::new)
                .collect();
            *derived = (version, keys);
        }
        Arc::clone(&derived.1)
    }

    /// Key that seals at this time; `None` if there is none that other servers still know.
    fn current(&self, now: u64) -> Option<Arc<Secret>> {
        let keys = self.keys();
        let key = keys.iter().rfind(|key| key.born <= now)?;
        (now - key.born < self.secrets.age_max()).then(|| Arc::clone(key))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Random,
    Files,
}

impl Tickets {
    /// With a random key, which is replaced whenever it is older than `lifetime`, in seconds. Tickets are good for as
    /// long.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn random(lifetime: u32, clock: Clock) -> Result<Self, TicketError> {
        let first = Secret::random(clock())?;
        Ok(Self::new(vec![first], Origin::Random, lifetime, clock))
    }

    /// With the contents of key files: the first one seals, all open.
    ///
    /// # Errors
    /// A content that is no key.
    pub fn of_files(files: &[&[u8]], lifetime: u32, clock: Clock) -> Result<Self, TicketError> {
        if files.len() > TICKET_KEYS_MAX {
            return Err(TicketError::TooMany(TICKET_KEYS_MAX));
        }
        let read = |(number, bytes): (usize, &&[u8])| {
            Secret::of_file(bytes).ok_or(TicketError::BadSize(number + 1))?
        };
        let keys = files.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() {
            return Err(TicketError::None);
        }
        Ok(Self::new(keys, Origin::Files, lifetime, clock))
    }

    /// With the random keys of a predecessor, from [`export`](Self::export).
    ///
    /// # Errors
    /// Not what a process of this version gave.
    pub fn of_predecessor(state: &[u8], lifetime: u32, clock: Clock) -> Result<Self, TicketError> {
        let Some((&FORMAT, state)) = state.split_first() else { return Err(TicketError::BadState) };
        let (records, rest) = state.as_chunks::<{ TIME + LONG }>();
        if !rest.is_empty() || records.is_empty() || records.len() > TICKET_KEYS_MAX {
            return Err(TicketError::BadState);
        }
        let read = |record: &[u8; TIME + LONG]| {
            let (born, raw) = record.split_first_chunk::<TIME>().ok_or(TicketError::BadState)?;
            let raw = raw.first_chunk::<LONG>().ok_or(TicketError::BadState)?;
            Secret::new(Zeroizing::new(*raw), u64::from_be_bytes(*born))
        };
        let keys = records.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        Ok(Self::new(keys, Origin::Random, lifetime, clock))
    }

    /// Random keys for a successor process; `None` for keys from files, which the successor reads itself.
    pub fn export(&self) -> Option<Zeroizing<Vec<u8>>> {
        let keys = (self.origin == Origin::Random).then(|| self.keys())?;
        let mut state = Zeroizing::new(Vec::with_capacity(1 + keys.len() * (TIME + LONG)));
        state.push(FORMAT);
        for key in keys.iter() {
            if let Some(raw) = &key.raw {
                state.extend_from_slice(&key.born.to_be_bytes());
                state.extend_from_slice(raw.as_slice());
            }
        }
        Some(state)
    }

    fn new(keys: Vec<Secret>, origin: Origin, lifetime: u32, clock: Clock) -> Self {
        let keys: Arc<[_]> = keys.into_iter().map(Arc::new).collect();
        Self { keys: FatalMutex::new(keys), origin, shared: None, lifetime, clock }
    }

    /// These keys, and those of secrets that other servers have, too. The own keys seal while there is no recent one of these.
    #[must_use]
    pub fn with_shared(self, secrets: Arc<SharedSecrets>) -> Self {
        // Version 0 means that no secrets were read yet.
        Self { shared: Some(SharedKeys { secrets, derived: FatalMutex::new((0, Arc::default())) }), ..self }
    }

    /// Returns true if these are the shared secrets.
    pub fn shares(&self, secrets: &Arc<SharedSecrets>) -> bool {
        self.shared.as_ref().is_some_and(|shared| Arc::ptr_eq(&shared.secrets, secrets))
    }

    /// The keys, after those that are too old have been replaced.
    fn keys(&self) -> Arc<[Arc<Secret>]> {
        let mut keys = self.keys.lock();
        if self.origin == Origin::Files {
            return Arc::clone(&keys);
        }
        let now = (self.clock)();
        let lifetime = u64::from(self.lifetime);
        let is_current = |key: &Arc<Secret>| key.age(now).is_some_and(|age| age < lifetime);
        // Keys made by a clock that was far ahead have an unknown age, and are removed at once.
        let is_good = |key: &Arc<Secret>| key.age(now).is_some_and(|age| age < 2 * lifetime.max(1));
        if !keys.first().is_some_and(is_current) {
            // The old key stays if there are no random numbers.
            if let Ok(next) = Secret::random(now) {
                let old = keys.iter().filter(|key| is_good(key)).take(TICKET_KEYS_MAX - 1).cloned();
                *keys = std::iter::once(Arc::new(next)).chain(old).collect();
            }
        } else if !keys.iter().all(is_good) {
            *keys = keys.iter().filter(|key| is_good(key)).cloned().collect();
        }
        Arc::clone(&keys)
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.lifetime
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let now = (self.clock)();
        match self.shared.as_ref().and_then(|shared| shared.current(now)) {
            Some(key) => key.seal(plain, now),
            None => self.keys().first()?.seal(plain, now),
        }
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, _) = ticket.split_first_chunk::<NAME>()?;
        let find = |keys: Arc<[Arc<Secret>]>| keys.iter().find(|key| key.name == *name).cloned();
        let shared = self.shared.as_ref().and_then(|shared| find(shared.keys()));
        let key = shared.or_else(|| find(self.keys()))?;
        let (made, plain) = key.open(ticket)?;
        // A ticket of the future is as good as a new one: the clocks of two machines differ.
        let age = (self.clock)().saturating_sub(made);
        (age < u64::from(self.lifetime)).then_some(plain)
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets")
            .field("origin", &self.origin)
            .field("lifetime", &self.lifetime)
            .finish_non_exhaustive()
    }
}

/// One key. The library wipes its own copies.
struct Secret {
    name: [u8; NAME],
    /// Seconds since 1970.
    born: u64,
    seal: PaddedBlockEncryptingKey,
    open: PaddedBlockDecryptingKey,
    mac: hmac::Key,
    /// For a successor; none of a file.
    raw: Option<Zeroizing<[u8; LONG]>>,
}

impl Secret {
    fn random(now: u64) -> Result<Self, TicketError> {
        let mut raw = Zeroizing::new([0; LONG]);
        rand::fill(raw.as_mut_slice())?;
        Self::new(raw, now)
    }

    /// Key of a secret that other servers have; it is born when it may be used.
    fn shared(secret: &SharedSecret) -> Result<Self, TicketError> {
        let mut raw = Zeroizing::new([0; LONG]);
        secret.derive(b"session ticket", raw.as_mut_slice())?;
        Self::new(raw, secret.from())
    }

    fn new(raw: Zeroizing<[u8; LONG]>, born: u64) -> Result<Self, TicketError> {
        let secret = Self::of_file(raw.as_slice()).ok_or(TicketError::BadState)??;
        Ok(Self { born, raw: Some(raw), ..secret })
    }

    /// Parses a key file; `None` if it has another size.
    fn of_file(bytes: &[u8]) -> Option<Result<Self, TicketError>> {
        let (name, rest) = bytes.split_first_chunk::<NAME>()?;
        let (mac, aes) = match bytes.len() {
            LONG => rest.split_at_checked(32)?,
            SHORT => {
                let (aes, mac) = rest.split_at_checked(16)?;
                (mac, aes)
            }
            _ => return None,
        };
        Some(Self::of_parts(*name, mac, aes))
    }

    fn of_parts(name: [u8; NAME], mac: &[u8], aes: &[u8]) -> Result<Self, TicketError> {
        let algorithm = if aes.len() == 16 { &AES_128 } else { &AES_256 };
        Ok(Self {
            name,
            born: 0,
            seal: PaddedBlockEncryptingKey::cbc_pkcs7(UnboundCipherKey::new(algorithm, aes)?)?,
            open: PaddedBlockDecryptingKey::cbc_pkcs7(UnboundCipherKey::new(algorithm, aes)?)?,
            mac: hmac::Key::new(hmac::HMAC_SHA256, mac),
            raw: None,
        })
    }

    /// Age in seconds; `None` if the key was made long after `now`.
    fn age(&self, now: u64) -> Option<u64> {
        // Clocks go back by seconds, and by years.
        const BACK: u64 = 3600;
        (self.born <= now.saturating_add(BACK)).then(|| now.saturating_sub(self.born))
    }

    fn seal(&self, plain: &[u8], now: u64) -> Option<Vec<u8>> {
        let mut state = Vec::with_capacity(TIME + plain.len() + 16);
        state.extend_from_slice(&now.to_be_bytes());
        state.extend_from_slice(plain);
        let context = self.seal.encrypt(&mut state).ok()?;
        let iv: &[u8] = (&context).try_into().ok()?;
        let mut ticket = Vec::with_capacity(NAME + IV + state.len() + MAC);
        ticket.extend_from_slice(&self.name);
        ticket.extend_from_slice(iv);
        ticket.extend_from_slice(&state);
        let mac = hmac::sign(&self.mac, &ticket);
        ticket.extend_from_slice(mac.as_ref());
        Some(ticket)
    }

    /// Opens a ticket: the time of sealing, and its contents. Decrypts nothing before the HMAC is verified.
    fn open(&self, ticket: &[u8]) -> Option<(u64, Vec<u8>)> {
        let (covered, mac) = ticket.split_last_chunk::<MAC>()?;
        hmac::verify(&self.mac, covered, mac).ok()?;
        let (iv, state) = covered.get(NAME..)?.split_first_chunk::<IV>()?;
        let mut state = state.to_vec();
        let opened = self.open.decrypt(&mut state, DecryptionContext::Iv128(FixedLength::from(iv))).ok()?;
        let (made, plain) = opened.split_first_chunk::<TIME>()?;
        Some((u64::from_be_bytes(*made), plain.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestClock;

    const HOUR: u32 = 3600;

    #[test]
    fn sealed_tickets_open() {
        let clock = TestClock::at(1000);
        for tickets in [
            Tickets::random(HOUR, clock.clock()).unwrap(),
            Tickets::of_files(&[&[1; 48]], HOUR, clock.clock()).unwrap(),
            Tickets::of_files(&[&[1; 80]], HOUR, clock.clock()).unwrap(),
        ] {
            for plain in [&b""[..], b"state", &[7; 1000]] {
                let ticket = tickets.encrypt(plain).unwrap();
                assert_eq!(tickets.decrypt(&ticket).as_deref(), Some(plain));
                assert_ne!(tickets.encrypt(plain), Some(ticket));
            }
        }
    }

    #[test]
    fn modified_or_truncated_tickets_do_not_open() {
        let tickets = Tickets::random(HOUR, TestClock::at(1000).clock()).unwrap();
        let ticket = tickets.encrypt(b"state").unwrap();
        for at in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[at] ^= 1;
            assert_eq!(tickets.decrypt(&changed), None, "{at}");
            assert_eq!(tickets.decrypt(&ticket[..at]), None, "{at}");
        }
        let other = Tickets::random(HOUR, TestClock::at(1000).clock()).unwrap();
        assert_eq!(other.decrypt(&ticket), None);
    }

    #[test]
    fn random_keys_are_replaced_and_old_ones_open_for_a_while() {
        let clock = TestClock::at(1000);
        let tickets = Tickets::random(HOUR, clock.clock()).unwrap();
        let name = |ticket: &[u8]| ticket[..NAME].to_vec();
        let first = tickets.encrypt(b"one").unwrap();
        clock.set(1000 + 3599);
        let late = tickets.encrypt(b"late").unwrap();
        assert_eq!(name(&first), name(&late));
        clock.set(1000 + 3600);
        let second = tickets.encrypt(b"two").unwrap();
        assert_ne!(name(&first), name(&second));
        assert_eq!(tickets.decrypt(&first), None, "its time is over");
        assert_eq!(tickets.decrypt(&late).as_deref(), Some(&b"late"[..]), "its key is still there");
        clock.set(1000 + 7200);
        assert_eq!(tickets.decrypt(&late), None);
        assert_eq!(tickets.keys().len(), 2, "the first key is wiped");
    }

    #[test]
    fn a_clock_that_goes_back() {
        let clock = TestClock::at(1_000_000);
        let tickets = Tickets::random(HOUR, clock.clock()).unwrap();
        let ticket = tickets.encrypt(b"one").unwrap();
        clock.set(1_000_000 - 5);
        assert!(tickets.decrypt(&ticket).is_some());
        clock.set(10);
        assert!(tickets.decrypt(&ticket).is_none());
        assert_eq!(tickets.keys().len(), 1);
    }

    #[test]
    fn keys_of_files() {
        let clock = TestClock::at(1000);
        let old = Tickets::of_files(&[&[1; 48]], HOUR, clock.clock()).unwrap();
        let new = Tickets::of_files(&[&[2; 80], &[1; 48]], HOUR, clock.clock()).unwrap();
        let ticket = old.encrypt(b"state").unwrap();
        assert_eq!(new.decrypt(&ticket).as_deref(), Some(&b"state"[..]));
        assert_eq!(old.decrypt(&new.encrypt(b"state").unwrap()), None);
        clock.set(1000 + 3600);
        assert_eq!(new.decrypt(&ticket), None, "its time is over");
        assert!(new.export().is_none());
    }

    #[test]
    fn ticket_keys_are_handed_to_the_successor() {
        let clock = TestClock::at(1000);
        let first = Tickets::random(HOUR, clock.clock()).unwrap();
        let old = first.encrypt(b"old").unwrap();
        clock.set(1000 + 3600);
        let late = first.encrypt(b"late").unwrap();
        let state = first.export().unwrap();
        let second = Tickets::of_predecessor(&state, HOUR, clock.clock()).unwrap();
        assert_eq!(second.decrypt(&late).as_deref(), Some(&b"late"[..]));
        assert_eq!(second.encrypt(b"x").unwrap()[..NAME], late[..NAME]);
        assert_eq!(second.keys().len(), 2, "also the key of {} bytes", old.len());
        for end in 0..state.len() {
            // Cut between two records it is a smaller state.
            let cut = Tickets::of_predecessor(&state[..end], HOUR, clock.clock());
            assert_eq!(cut.is_ok(), end == 1 + TIME + LONG, "{end}");
        }
    }

    #[test]
    fn shared_keys_are_known_before_they_seal() {
        let clock = TestClock::at(1000);
        let nodes: Vec<_> = (0..2)
            .map(|_| {
                let secrets = Arc::new(SharedSecrets::new(3 * 100));
                let own = Tickets::random(HOUR, clock.clock()).unwrap();
                (secrets.clone(), own.with_shared(secrets))
            })
            .collect();
        let [(one, first), (two, second)] = &nodes[..] else { panic!() };
        let alone = first.encrypt(b"own").unwrap();
        assert_eq!(second.decrypt(&alone), None);
        let secret = |from: u64| SharedSecret::new(from, [from as u8; 32]);
        one.set(vec![secret(900), secret(1100)]);
        let early = first.encrypt(b"early").unwrap();
        assert_eq!(second.decrypt(&early), None, "nobody has told it");
        two.set(vec![secret(900), secret(1100)]);
        assert_eq!(second.decrypt(&early).as_deref(), Some(&b"early"[..]));
        assert!(first.decrypt(&alone).is_some(), "own keys still open");
        // The next key seals by itself, and opens where the clock is behind.
        clock.set(1100);
        let next = first.encrypt(b"next").unwrap();
        assert_ne!(next[..NAME], early[..NAME]);
        clock.set(1090);
        assert_eq!(second.decrypt(&next).as_deref(), Some(&b"next"[..]));
        // If no new secrets come, the server's own keys seal tickets after a while.
        clock.set(1100 + 299);
        assert_eq!(first.encrypt(b"x").unwrap()[..NAME], next[..NAME]);
        clock.set(1100 + 300);
        let late = first.encrypt(b"late").unwrap();
        assert_eq!((second.decrypt(&late), first.decrypt(&late).is_some()), (None, true));
        assert!(second.decrypt(&next).is_some());
    }

    #[test]
    fn refused_input_is_named() {
        let clock = TestClock::at(1000).clock();
        let error = |files: &[&[u8]]| Tickets::of_files(files, HOUR, clock.clone()).unwrap_err();
        assert_eq!(error(&[&[1; 48], &[1; 47]]), TicketError::BadSize(2));
        assert_eq!(error(&[]), TicketError::None);
        assert_eq!(error(&[&[1; 48][..]; 101]), TicketError::TooMany(100));
    }
}
