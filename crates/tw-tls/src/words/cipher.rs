//! Cipher strings (`ssl_ciphers`), as `openssl-ciphers(1)` describes them, and the list of suites for TLS 1.3.
//!
//! A string is a program: every word changes one list, from which rustls's suites are taken in the end.
//!
//! ```text
//! WORD   what is not in the list goes to its end      -WORD   what is in the list leaves it, and may come back
//! +WORD  what is in the list goes to its end          !WORD   leaves the list for good
//! ```

use rustls::SupportedCipherSuite;

use super::suite::{A, E, K, M, SUITES, Suite, V, named};
use super::{Selection, WordError};

/// Expansion of `DEFAULT` at the beginning of a string.
const DEFAULT: &str = "ALL:!COMPLEMENTOFDEFAULT:!eNULL";

/// Suites for TLS 1.2 that a cipher string selects.
///
/// # Errors
/// The string is malformed, selects nothing, or only suites that are never offered.
pub fn ciphers(words: &str) -> Result<Selection<SupportedCipherSuite>, WordError> {
    let mut list = List::new();
    // Fedora's OpenSSL accepts `PROFILE=SYSTEM`, which configurations of Fedora's packages contain.
    let rest = match words.strip_prefix("DEFAULT").or_else(|| words.strip_prefix("PROFILE=SYSTEM")) {
        Some(rest) => {
            list.run(DEFAULT)?;
            // The suites of the default were not named by the configuration.
            list.selections.clear();
            rest
        }
        None => words,
    };
    list.run(rest)?;
    list.finish()
}

/// Default suites for TLS 1.2 (nginx: `HIGH:!aNULL:!MD5`).
pub fn default_ciphers() -> Vec<SupportedCipherSuite> {
    ciphers("HIGH:!aNULL:!MD5").map(|selected| selected.chosen).unwrap_or_default()
}

/// Suites for TLS 1.3 of a list of names (`ssl_conf_command Ciphersuites`).
///
/// # Errors
/// An unknown name, or only suites that are never offered.
pub fn ciphersuites(words: &str) -> Result<Selection<SupportedCipherSuite>, WordError> {
    let mut selected = Selection { chosen: Vec::new(), never: Vec::new() };
    for word in words.split(':').map(str::trim).filter(|word| !word.is_empty()) {
        let suite = named(word).filter(|suite| suite.version == V::Tls13);
        let suite = suite.ok_or_else(|| WordError::Unknown(word.to_owned()))?;
        match suite.supported() {
            Some(supported) if !selected.chosen.contains(&supported) => selected.chosen.push(supported),
            Some(_) => {}
            None => selected.never.push(word.to_owned()),
        }
    }
    match selected {
        Selection { chosen, never } if chosen.is_empty() && never.is_empty() => Err(WordError::NoMatch),
        Selection { chosen, never } if chosen.is_empty() => Err(WordError::NeverOffered(never)),
        selected => Ok(selected),
    }
}

/// Default suites for TLS 1.3: OpenSSL's order.
pub fn default_ciphersuites() -> Vec<SupportedCipherSuite> {
    SUITES.iter().filter(|suite| suite.version == V::Tls13).filter_map(Suite::supported).collect()
}

/// List that the words of a string modify.
struct List {
    items: Vec<Item>,
    /// Words that have added suites to the list, with these suites.
    selections: Vec<SelectedSuites>,
}

struct Item {
    suite: &'static Suite,
    state: ListState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListState {
    In,
    Out,
}

struct SelectedSuites {
    word: String,
    /// Selected suites; empty for an unknown word.
    codes: Vec<u16>,
}

/// Operation on the suites that a word selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Add,
    /// `-`
    Remove,
    /// `+`
    MoveToEnd,
    /// `!`
    Kill,
}

impl List {
    fn new() -> Self {
        // TLS 1.3 has names of its own and a list of its own.
        let suites = SUITES.iter().filter(|suite| suite.version != V::Tls13);
        Self {
            items: suites.map(|suite| Item { suite, state: ListState::Out }).collect(),
            selections: Vec::new(),
        }
    }

    fn run(&mut self, words: &str) -> Result<(), WordError> {
        // A command needs no separator in front of it: DEFAULT@SECLEVEL=1.
        let words = words.replace('@', ":@");
        for word in words.split([':', ' ', ';', ',']).filter(|word| !word.is_empty()) {
            if let Some(command) = word.strip_prefix('@') {
                match command {
                    "STRENGTH" => self.sort_by_strength(),
                    // All suites offered here are of security level 2, whatever level is asked for.
                    _ if command
                        .strip_prefix("SECLEVEL=")
                        .is_some_and(|level| matches!(level.as_bytes(), [b'0'..=b'5'])) => {}
                    _ => return Err(WordError::Malformed(word.to_owned())),
                }
                continue;
            }
            let (verb, word) = match word.as_bytes() {
                [b'-', ..] => (Verb::Remove, word.get(1..).unwrap_or_default()),
                [b'+', ..] => (Verb::MoveToEnd, word.get(1..).unwrap_or_default()),
                [b'!', ..] => (Verb::Kill, word.get(1..).unwrap_or_default()),
                _ => (Verb::Add, word),
            };
            let is_word = |part: &str| {
                !part.is_empty()
                    && part
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'='))
            };
            if !word.split('+').all(is_word) {
                return Err(WordError::Malformed(word.to_owned()));
            }
            self.apply(verb, word);
        }
        Ok(())
    }

    fn apply(&mut self, verb: Verb, word: &str) {
        let tests: Option<Vec<Test>> = word.split('+').map(Test::of).collect();
        let selects =
            |suite: &Suite| tests.as_ref().is_some_and(|tests| tests.iter().all(|test| test.holds(suite)));
        if verb == Verb::Add {
            let codes = SUITES.iter().filter(|suite| selects(suite)).map(|suite| suite.code).collect();
            self.selections.push(SelectedSuites { word: word.to_owned(), codes });
        }
        let (mut taken, mut rest): (Vec<Item>, Vec<Item>) =
            std::mem::take(&mut self.items).into_iter().partition(|item| {
                let state = if verb == Verb::Add { ListState::Out } else { ListState::In };
                selects(item.suite) && (item.state == state || verb == Verb::Kill)
            });
        match verb {
            Verb::Kill => self.items = rest,
            Verb::Remove => {
                // Removed suites go to the beginning, in their order, which they keep if they are added again.
                taken.iter_mut().for_each(|item| item.state = ListState::Out);
                taken.append(&mut rest);
                self.items = taken;
            }
            Verb::Add | Verb::MoveToEnd => {
                taken.iter_mut().for_each(|item| item.state = ListState::In);
                rest.append(&mut taken);
                self.items = rest;
            }
        }
    }

    fn sort_by_strength(&mut self) {
        let (mut sorted, mut out): (Vec<Item>, Vec<Item>) =
            std::mem::take(&mut self.items).into_iter().partition(|item| item.state == ListState::In);
        sorted.sort_by_key(|item| std::cmp::Reverse(item.suite.strength()));
        out.append(&mut sorted);
        self.items = out;
    }

    fn finish(self) -> Result<Selection<SupportedCipherSuite>, WordError> {
        let List { items, selections: selected_suites } = self;
        let selected = || items.iter().filter(|item| item.state == ListState::In).map(|item| item.suite);
        let chosen: Vec<SupportedCipherSuite> = selected().filter_map(Suite::supported).collect();
        let mut never = Vec::new();
        for SelectedSuites { word, codes } in selected_suites {
            let mut remaining = selected().filter(|suite| codes.contains(&suite.code)).peekable();
            // Suites of TLS 1.3 are offered all the same, and have to be killed elsewhere.
            let is_tls13 = named(&word).is_some_and(|suite| suite.version == V::Tls13);
            let is_unknown =
                codes.is_empty() && Test::of(&word).is_none() && !is_tls13 && !word.contains('+');
            let is_never = remaining.peek().is_some() && remaining.all(|suite| suite.supported().is_none());
            if (is_unknown || is_never) && !never.contains(&word) {
                never.push(word);
            }
        }
        match chosen.is_empty() {
            false => Ok(Selection { chosen, never }),
            true if selected().next().is_some() => Err(WordError::NeverOffered(never)),
            true => Err(WordError::NoMatch),
        }
    }
}

/// Condition of a word on a suite.
enum Test {
    Name(&'static str),
    Alias(fn(&Suite) -> bool),
}

impl Test {
    fn of(word: &str) -> Option<Self> {
        let alias = ALIASES.iter().find(|(name, _)| *name == word).map(|(_, test)| Self::Alias(*test));
        alias.or_else(|| {
            // The names that suites with DHE and RSA had before OpenSSL 1.0.2.
            let old = OLD_NAMES.iter().find(|(old, _)| *old == word).map(|(_, name)| *name);
            named(old.unwrap_or(word)).map(|suite| Self::Name(suite.name))
        })
    }

    fn holds(&self, suite: &Suite) -> bool {
        match self {
            Self::Name(name) => suite.name == *name,
            Self::Alias(test) => test(suite),
        }
    }
}

const OLD_NAMES: &[(&str, &str)] = &[
    ("EDH-RSA-DES-CBC3-SHA", "DHE-RSA-DES-CBC3-SHA"),
    ("EDH-DSS-DES-CBC3-SHA", "DHE-DSS-DES-CBC3-SHA"),
    ("AES128-CBC-SHA", "AES128-SHA"),
];

fn is_aes128(suite: &Suite) -> bool {
    matches!(suite.encryption, E::Aes128 | E::Aes128Gcm | E::Aes128Ccm | E::Aes128Ccm8)
}

fn is_aes256(suite: &Suite) -> bool {
    matches!(suite.encryption, E::Aes256 | E::Aes256Gcm | E::Aes256Ccm | E::Aes256Ccm8)
}

fn is_ccm8(suite: &Suite) -> bool {
    matches!(suite.encryption, E::Aes128Ccm8 | E::Aes256Ccm8)
}

fn is_ccm(suite: &Suite) -> bool {
    matches!(suite.encryption, E::Aes128Ccm | E::Aes256Ccm) || is_ccm8(suite)
}

fn is_camellia(suite: &Suite) -> bool {
    matches!(suite.encryption, E::Camellia128 | E::Camellia256)
}

fn is_aria(suite: &Suite) -> bool {
    matches!(suite.encryption, E::Aria128Gcm | E::Aria256Gcm)
}

fn is_anonymous(suite: &Suite) -> bool {
    suite.authentication == A::Null
}

fn is_medium(suite: &Suite) -> bool {
    matches!(suite.encryption, E::Des3 | E::Rc4)
}

/// Word with its condition on a suite.
type Alias = (&'static str, fn(&Suite) -> bool);

/// Words that are not names of suites. `|_| false` marks a known word that selects nothing.
const ALIASES: &[Alias] = &[
    ("ALL", |s| s.encryption != E::Null),
    ("COMPLEMENTOFALL", |s| s.encryption == E::Null),
    // ALL without DEFAULT: anonymous suites, weak ones, and those that OpenSSL does not offer by default.
    ("COMPLEMENTOFDEFAULT", |s| {
        is_anonymous(s)
            || is_medium(s)
            || is_ccm(s)
            || is_camellia(s)
            || is_aria(s)
            || s.authentication == A::Dss
    }),
    ("HIGH", |s| s.encryption != E::Null && !is_medium(s)),
    ("MEDIUM", is_medium),
    ("LOW", |_| false),
    ("EXP", |_| false),
    ("EXPORT", |_| false),
    ("EXPORT40", |_| false),
    ("EXPORT56", |_| false),
    ("FIPS", |s| (is_aes128(s) || is_aes256(s)) && s.authentication != A::Null),
    // Key exchange.
    ("kRSA", |s| s.exchange == K::Rsa),
    ("RSA", |s| s.exchange == K::Rsa && s.authentication == A::Rsa),
    ("kDHE", |s| s.exchange == K::Dhe),
    ("kEDH", |s| s.exchange == K::Dhe),
    ("DH", |s| s.exchange == K::Dhe),
    ("DHE", |s| s.exchange == K::Dhe && !is_anonymous(s)),
    ("EDH", |s| s.exchange == K::Dhe && !is_anonymous(s)),
    ("ADH", |s| s.exchange == K::Dhe && is_anonymous(s)),
    ("kECDHE", |s| s.exchange == K::Ecdhe),
    ("kEECDH", |s| s.exchange == K::Ecdhe),
    ("ECDH", |s| s.exchange == K::Ecdhe),
    ("ECDHE", |s| s.exchange == K::Ecdhe && !is_anonymous(s)),
    ("EECDH", |s| s.exchange == K::Ecdhe && !is_anonymous(s)),
    ("AECDH", |s| s.exchange == K::Ecdhe && is_anonymous(s)),
    ("kDHr", |_| false),
    ("kDHd", |_| false),
    ("kECDHr", |_| false),
    ("kECDHe", |_| false),
    ("kECDH", |_| false),
    ("kPSK", |_| false),
    ("kSRP", |_| false),
    ("kGOST", |_| false),
    // Authentication.
    ("aRSA", |s| s.authentication == A::Rsa),
    ("aECDSA", |s| s.authentication == A::Ecdsa),
    ("ECDSA", |s| s.authentication == A::Ecdsa),
    ("aDSS", |s| s.authentication == A::Dss),
    ("DSS", |s| s.authentication == A::Dss),
    ("aNULL", is_anonymous),
    ("aECDH", |_| false),
    ("aDH", |_| false),
    ("aPSK", |_| false),
    ("PSK", |_| false),
    ("SRP", |_| false),
    ("aSRP", |_| false),
    ("aGOST", |_| false),
    ("aGOST01", |_| false),
    ("GOST", |_| false),
    // Encryption.
    ("eNULL", |s| s.encryption == E::Null),
    ("NULL", |s| s.encryption == E::Null),
    ("AES128", is_aes128),
    ("AES256", is_aes256),
    ("AES", |s| is_aes128(s) || is_aes256(s)),
    ("AESGCM", |s| matches!(s.encryption, E::Aes128Gcm | E::Aes256Gcm)),
    ("AESCCM", is_ccm),
    ("AESCCM8", is_ccm8),
    ("CHACHA20", |s| s.encryption == E::ChaCha20),
    ("CAMELLIA128", |s| s.encryption == E::Camellia128),
    ("CAMELLIA256", |s| s.encryption == E::Camellia256),
    ("CAMELLIA", is_camellia),
    ("ARIA128", |s| s.encryption == E::Aria128Gcm),
    ("ARIA256", |s| s.encryption == E::Aria256Gcm),
    ("ARIA", is_aria),
    ("ARIAGCM", is_aria),
    ("3DES", |s| s.encryption == E::Des3),
    ("RC4", |s| s.encryption == E::Rc4),
    ("DES", |_| false),
    ("RC2", |_| false),
    ("IDEA", |_| false),
    ("SEED", |_| false),
    // Message authentication, of suites that have one apart from their encryption.
    ("MD5", |s| s.mac == M::Md5),
    ("SHA1", |s| s.mac == M::Sha1),
    ("SHA", |s| s.mac == M::Sha1),
    ("SHA256", |s| s.mac == M::Sha256),
    ("SHA384", |s| s.mac == M::Sha384),
    // The first version that has a suite.
    ("SSLv3", |s| s.version == V::Ssl3),
    ("TLSv1", |s| s.version == V::Tls10),
    ("TLSv1.0", |s| s.version == V::Tls10),
    ("TLSv1.2", |s| s.version == V::Tls12),
];

#[cfg(test)]
mod tests;
