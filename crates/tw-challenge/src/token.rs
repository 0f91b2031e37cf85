//! Signed tokens of a challenge: the puzzle that a client gets, permission to wait instead, and the cookie that it gets in return.
//!
//! ```text
//! time (5 bytes) │ bits (1) │ HMAC-SHA-256 over purpose, time, bits and client, cut to 24 bytes      in base64: 40 characters
//! ```
//! The server stores nothing: a token says its time and the difficulty, and only a client with the properties that are part of the
//! signature can use it. There is no clock here: time is an argument, in seconds since 1970.

use std::net::IpAddr;

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use aws_lc_rs::hmac;
use sha2::{Digest, Sha256};
use tw_conf::Network;
use tw_http::base64::{self, Alphabet};
use tw_module_support::secret::is_same;
use tw_net::Addr;

/// Salt of the derivation of the key.
const SALT: &[u8] = b"tailwater challenge";
/// Bytes of the time in a token: enough for 34,000 years.
const TIME_LEN: usize = 5;
/// Bytes of the signature in a token.
const MAC_LEN: usize = 24;
/// Bytes of a token.
const TOKEN_LEN: usize = TIME_LEN + 1 + MAC_LEN;
/// Characters of a token as text: no padding, because the number of bytes is a multiple of three.
pub(super) const TEXT_LEN: usize = TOKEN_LEN / 3 * 4;
/// Characters of an answer: the puzzle, a space, and the number that solves it in hexadecimal digits.
pub(super) const ANSWER_LEN: usize = TEXT_LEN + 1 + 16;
/// Flag in the bits of a cookie: its client has waited instead of solving a puzzle of that difficulty.
pub(super) const WAITED: u8 = 0x80;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Time that a client has to solve a challenge, or to come back after waiting.
    pub(super) const PUZZLE_SECONDS_MAX: u64 = 600, secs, "403; the client has to ask again";
    /// Leading zero bits of challenge_difficulty.
    ///
    /// Highest difficulty: a browser would need hours.
    pub(super) const DIFFICULTY_MAX: u8 = 32, count, "the configuration is refused; a variable counts as this";
    /// User-Agent that the cookie of a challenge is bound to.
    const USER_AGENT_MAX: usize = 1024, bytes, "the rest does not count";
}

/// Purpose of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To be solved; the time is that of its making.
    Puzzle,
    /// To be brought back after a while; the time is that of its making.
    Wait,
    /// Cookie; the time is its end.
    Pass,
}

/// Content of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token {
    /// Seconds since 1970.
    pub(super) time: u64,
    /// Leading zero bits, and the flag [`WAITED`].
    pub(super) bits: u8,
}

/// Defect of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenError {
    /// No token.
    Malformed,
    /// Not made by this server for this purpose and this client.
    Signature,
    /// Too old.
    Expired,
    /// Not old enough.
    Early,
    /// The hash has too few zero bits.
    Wrong,
}

/// Numbers of leading bits of addresses that tokens are bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PrefixBits {
    pub(super) v4: u8,
    pub(super) v6: u8,
}

/// Properties of a client that a token is bound to.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientBinding<'a> {
    pub(super) addr: &'a Addr,
    pub(super) prefix: PrefixBits,
    pub(super) host: &'a [u8],
    pub(super) user_agent: &'a [u8],
}

/// Key of all tokens.
pub(super) struct TokenKey(hmac::Key);

struct KeyLen;

impl KeyType for KeyLen {
    fn len(&self) -> usize {
        32
    }
}

impl TokenKey {
    /// Derives the key from a secret.
    pub(super) fn of(secret: &[u8]) -> Self {
        let mut key = [0; 32];
        let derived = Salt::new(HKDF_SHA256, SALT).extract(secret);
        let expanded = derived.expand(&[&b"tokens"[..]], KeyLen).and_then(|okm| okm.fill(&mut key));
        expanded.expect("32 bytes are one hash of HKDF");
        Self(hmac::Key::new(hmac::HMAC_SHA256, &key))
    }

    /// Makes a token. A time beyond its five bytes does not occur.
    pub(super) fn seal(&self, purpose: Purpose, token: Token, client: &ClientBinding<'_>) -> [u8; TEXT_LEN] {
        let mut bytes = [0; TOKEN_LEN];
        let (content, mac) = bytes.split_at_mut(TIME_LEN + 1);
        content.copy_from_slice(&token.content());
        mac.copy_from_slice(&self.mac(purpose, token, client));
        let mut text = [0; TEXT_LEN];
        for (place, letter) in text.iter_mut().zip(base64::encode(&bytes)) {
            *place = match letter {
                b'+' => b'-',
                b'/' => b'_',
                other => other,
            };
        }
        text
    }

    /// Reads a token of this client. Its time is for the caller to judge.
    pub(super) fn open(
        &self,
        purpose: Purpose,
        text: &[u8],
        client: &ClientBinding<'_>,
    ) -> Result<Token, TokenError> {
        // Padding would be another way to write the same token.
        if text.len() != TEXT_LEN || text.contains(&b'=') {
            return Err(TokenError::Malformed);
        }
        let mut bytes = Vec::with_capacity(TOKEN_LEN);
        base64::decode(text, Alphabet::Url, &mut bytes).map_err(|_| TokenError::Malformed)?;
        let Some(([a, b, c, d, e, bits], mac)) = bytes.split_first_chunk() else {
            return Err(TokenError::Malformed);
        };
        let token = Token { time: u64::from_be_bytes([0, 0, 0, *a, *b, *c, *d, *e]), bits: *bits };
        if is_same(mac, &self.mac(purpose, token, client)) { Ok(token) } else { Err(TokenError::Signature) }
    }

    fn mac(&self, purpose: Purpose, token: Token, client: &ClientBinding<'_>) -> [u8; MAC_LEN] {
        let mut mac = hmac::Context::with_key(&self.0);
        let purpose: u8 = match purpose {
            Purpose::Puzzle => 1,
            Purpose::Wait => 2,
            Purpose::Pass => 3,
        };
        mac.update(&[purpose]);
        mac.update(&token.content());
        mac.update(&client.prefix());
        // The length keeps host and User-Agent apart.
        mac.update(&(client.host.len() as u64).to_be_bytes());
        mac.update(client.host);
        mac.update(&client.user_agent[..client.user_agent.len().min(USER_AGENT_MAX)]);
        let tag = mac.sign();
        *tag.as_ref().first_chunk().expect("SHA-256 has 32 bytes")
    }

    /// Checks an answer: a puzzle of this client, and the number that solves it. Returns its difficulty.
    pub(super) fn check_answer(
        &self,
        answer: &[u8],
        client: &ClientBinding<'_>,
        now: u64,
    ) -> Result<u8, TokenError> {
        let Some((puzzle, [b' ', digits @ ..])) = answer.split_at_checked(TEXT_LEN) else {
            return Err(TokenError::Malformed);
        };
        if answer.len() != ANSWER_LEN || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(TokenError::Malformed);
        }
        let digits = std::str::from_utf8(digits).map_err(|_| TokenError::Malformed)?;
        let number = u64::from_str_radix(digits, 16).map_err(|_| TokenError::Malformed)?;
        let token = self.open(Purpose::Puzzle, puzzle, client)?;
        if now.saturating_sub(token.time) > PUZZLE_SECONDS_MAX {
            return Err(TokenError::Expired);
        }
        if leading_zeros(puzzle, number) < u32::from(token.bits) {
            return Err(TokenError::Wrong);
        }
        Ok(token.bits)
    }

    /// Checks that a client with this token has waited for `seconds`. Returns the difficulty of the puzzle that it did not solve.
    pub(super) fn check_wait(
        &self,
        text: &[u8],
        client: &ClientBinding<'_>,
        now: u64,
        seconds: u64,
    ) -> Result<u8, TokenError> {
        let token = self.open(Purpose::Wait, text, client)?;
        let waited = now.saturating_sub(token.time);
        if waited < seconds {
            return Err(TokenError::Early);
        }
        if waited > seconds + PUZZLE_SECONDS_MAX { Err(TokenError::Expired) } else { Ok(token.bits) }
    }
}

impl Token {
    fn content(self) -> [u8; TIME_LEN + 1] {
        let [_, _, _, a, b, c, d, e] = self.time.to_be_bytes();
        [a, b, c, d, e, self.bits]
    }
}

impl ClientBinding<'_> {
    /// Family and first bits of the address; an address like `::ffff:192.0.2.1` is an IPv4 address.
    fn prefix(&self) -> [u8; 17] {
        let mut prefix = [0; 17];
        let Some(addr) = self.addr.inet() else { return prefix };
        match addr.ip().to_canonical() {
            addr @ IpAddr::V4(_) => {
                prefix[0] = 4;
                if let IpAddr::V4(addr) = Network::new(addr, self.prefix.v4).addr() {
                    prefix[1..5].copy_from_slice(&addr.octets());
                }
            }
            addr @ IpAddr::V6(_) => {
                prefix[0] = 6;
                if let IpAddr::V6(addr) = Network::new(addr, self.prefix.v6).addr() {
                    prefix[1..].copy_from_slice(&addr.octets());
                }
            }
        }
        // If no bit counts, a client may also change its address family.
        if self.prefix == (PrefixBits { v4: 0, v6: 0 }) {
            prefix[0] = 0;
        }
        prefix
    }
}

/// Zero bits at the begin of SHA-256 of a puzzle and a number (eight bytes, the highest first).
pub(super) fn leading_zeros(puzzle: &[u8], number: u64) -> u32 {
    let hash = Sha256::new().chain_update(puzzle).chain_update(number.to_be_bytes()).finalize();
    let zeros = hash.iter().take_while(|byte| **byte == 0).count();
    zeros as u32 * 8 + hash.get(zeros).map_or(0, |byte| byte.leading_zeros())
}

/// Finds the number that solves a puzzle, for tests.
#[cfg(test)]
pub(super) fn solve(puzzle: &[u8], bits: u8) -> u64 {
    (0..).find(|number| leading_zeros(puzzle, *number) >= u32::from(bits)).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;
    const PREFIX: PrefixBits = PrefixBits { v4: 24, v6: 48 };

    fn addr(text: &str) -> Addr {
        Addr::Inet((text.parse::<IpAddr>().unwrap(), 1).into())
    }

    fn client(addr: &Addr) -> ClientBinding<'_> {
        ClientBinding { addr, prefix: PREFIX, host: b"a.example", user_agent: b"Browser/1" }
    }

    fn key() -> TokenKey {
        TokenKey::of(b"a secret of the tests")
    }

    fn puzzle(bits: u8, addr: &Addr) -> [u8; TEXT_LEN] {
        key().seal(Purpose::Puzzle, Token { time: NOW, bits }, &client(addr))
    }

    fn answer(puzzle: &[u8], number: u64) -> Vec<u8> {
        [puzzle, format!(" {number:016x}").as_bytes()].concat()
    }

    #[test]
    fn solved_puzzle_is_accepted_until_it_expires() {
        let addr = addr("192.0.2.1");
        let puzzle = puzzle(10, &addr);
        let answer = answer(&puzzle, solve(&puzzle, 10));
        for (now, expected) in [
            (NOW, Ok(10)),
            (NOW + PUZZLE_SECONDS_MAX, Ok(10)),
            (NOW + PUZZLE_SECONDS_MAX + 1, Err(TokenError::Expired)),
            // A clock that was set back.
            (NOW - 3600, Ok(10)),
        ] {
            assert_eq!(key().check_answer(&answer, &client(&addr), now), expected, "{now}");
        }
    }

    #[test]
    fn wrong_and_malformed_answers_are_refused() {
        let addr = addr("192.0.2.1");
        let puzzle = puzzle(10, &addr);
        let wrong = (0..).find(|number| leading_zeros(&puzzle, *number) < 10).unwrap();
        let check = |text: &[u8]| key().check_answer(text, &client(&addr), NOW);
        assert_eq!(check(&answer(&puzzle, wrong)), Err(TokenError::Wrong));
        let good = answer(&puzzle, solve(&puzzle, 10));
        for len in 0..good.len() {
            assert_eq!(check(&good[..len]), Err(TokenError::Malformed), "{len}");
        }
        let plus = [&puzzle[..], b"+", &good[TEXT_LEN + 1..]].concat();
        for text in [[&good[..], b"0"].concat(), plus] {
            assert_eq!(check(&text), Err(TokenError::Malformed));
        }
        for number in ["+000000000000001", "000000000000000g", "               1"] {
            let text = [&puzzle[..], b" ", number.as_bytes()].concat();
            assert_eq!(check(&text), Err(TokenError::Malformed), "{number}");
        }
    }

    #[test]
    fn every_changed_character_is_noticed() {
        let addr = addr("192.0.2.1");
        let token = Token { time: NOW, bits: 10 };
        for purpose in [Purpose::Puzzle, Purpose::Wait, Purpose::Pass] {
            let text = key().seal(purpose, token, &client(&addr));
            assert_eq!(key().open(purpose, &text, &client(&addr)), Ok(token));
            for at in 0..text.len() {
                for byte in 0..=u8::MAX {
                    let mut changed = text;
                    changed[at] = byte;
                    let opened = key().open(purpose, &changed, &client(&addr));
                    assert_eq!(opened.is_ok(), byte == text[at], "{purpose:?} {at} {byte}");
                }
            }
        }
    }

    #[test]
    fn token_of_one_purpose_has_no_other() {
        let addr = addr("192.0.2.1");
        let all = [Purpose::Puzzle, Purpose::Wait, Purpose::Pass];
        for made in all {
            let text = key().seal(made, Token { time: NOW, bits: 1 }, &client(&addr));
            for used in all {
                assert_eq!(key().open(used, &text, &client(&addr)).is_ok(), made == used);
            }
            let other = TokenKey::of(b"another secret");
            assert_eq!(other.open(made, &text, &client(&addr)), Err(TokenError::Signature));
        }
    }

    #[test]
    fn tokens_are_bound_to_a_client() {
        let v4 = addr("192.0.2.1");
        let v6 = addr("2001:db8:1::1");
        let unix = Addr::Unix(None);
        let token = Token { time: NOW, bits: 1 };
        for (made_for, used_by, is_same) in [
            (&v4, addr("192.0.2.255"), true),
            (&v4, addr("::ffff:192.0.2.9"), true),
            (&v4, addr("192.0.3.1"), false),
            (&v4, addr("2001:db8:1::1"), false),
            (&v4, Addr::Unix(None), false),
            (&v6, addr("2001:db8:1:ffff::2"), true),
            (&v6, addr("2001:db8:2::1"), false),
            (&unix, Addr::Unix(None), true),
        ] {
            let text = key().seal(Purpose::Pass, token, &client(made_for));
            assert_eq!(
                key().open(Purpose::Pass, &text, &client(&used_by)).is_ok(),
                is_same,
                "{made_for} {used_by}"
            );
        }
        let text = key().seal(Purpose::Pass, token, &client(&v4));
        for (host, user_agent) in
            [("b.example", "Browser/1"), ("a.example", "Browser/2"), ("a.exampleB", "rowser/1")]
        {
            let other =
                ClientBinding { host: host.as_bytes(), user_agent: user_agent.as_bytes(), ..client(&v4) };
            assert_eq!(
                key().open(Purpose::Pass, &text, &other),
                Err(TokenError::Signature),
                "{host} {user_agent}"
            );
        }
    }

    #[test]
    fn addresses_do_not_count_without_prefix() {
        let none = PrefixBits { v4: 0, v6: 0 };
        let v4 = addr("192.0.2.1");
        let v6 = addr("2001:db8::1");
        let one = ClientBinding { prefix: none, ..client(&v4) };
        let other = ClientBinding { prefix: none, ..client(&v6) };
        let text = key().seal(Purpose::Pass, Token { time: NOW, bits: 1 }, &one);
        assert!(key().open(Purpose::Pass, &text, &other).is_ok());
    }

    #[test]
    fn waiting_takes_its_time() {
        let addr = addr("192.0.2.1");
        let text = key().seal(Purpose::Wait, Token { time: NOW, bits: 9 }, &client(&addr));
        for (now, expected) in [
            (NOW, Err(TokenError::Early)),
            (NOW + 9, Err(TokenError::Early)),
            (NOW + 10, Ok(9)),
            (NOW + 10 + PUZZLE_SECONDS_MAX, Ok(9)),
            (NOW + 11 + PUZZLE_SECONDS_MAX, Err(TokenError::Expired)),
        ] {
            assert_eq!(key().check_wait(&text, &client(&addr), now, 10), expected, "{now}");
        }
    }

    #[test]
    fn hashes_are_those_of_other_programs() {
        // `hashlib.sha256(b"a" * 40 + (206552).to_bytes(8, "big"))` in Python is 00006653…
        let puzzle = [b'a'; TEXT_LEN];
        assert_eq!((leading_zeros(&puzzle, 206552), solve(&puzzle, 17)), (17, 206552));
        assert_eq!(solve(&puzzle, 0), 0);
    }
}
