//! Password hashes of password files. Pure and slow on purpose: most of them belong on a pool thread.
//!
//! Prefixes select the kind as in nginx (`ngx_crypt`); the kinds that nginx leaves to crypt(3) are those of glibc and
//! libxcrypt that are in use.

use std::fmt;

use md5::{Digest, Md5};
use sha_crypt::{PasswordHasher, PasswordVerifier, ShaCrypt, password_hash};
use sha1::Sha1;
use tw_http::base64::{self, Alphabet};
use tw_module_support::secret::is_same;
use yescrypt::Yescrypt;

use super::des::{self, DIGITS};

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// A hash of a password in a file of users.
    ///
    /// Longest hash that is looked at; the longest real ones have some 120 bytes.
    pub(super) const HASH_MAX: usize = 1024, bytes, "no password fits it, and the error log says so";
    /// Bytes of a password compared with a slow hash.
    ///
    /// The cost of the hash grows with them. crypt(3) has the same limit.
    pub(super) const PASSWORD_MAX: usize = 512, bytes, "it is wrong";
}

/// Most work that a hash may be, in microseconds of one core, roughly: bcrypt of cost 20, 60 million rounds of SHA-crypt.
pub(super) const WORK_MAX_US: u64 = 60_000_000;
/// Most memory of a hash: the largest parameters that crypt(3) makes by itself.
pub(super) const MEMORY_MAX: u64 = 1 << 30;

/// Kinds of hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HashKind {
    Plain,
    Sha,
    SaltedSha,
    /// md5-crypt, with its mark: `$1$` or `$apr1$`.
    Md5(&'static str),
    Bcrypt,
    Sha2,
    Yescrypt,
    Des,
}

/// Reasons why a password gets no line in a password file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PasswordError {
    /// The name of the user has a byte that ends it, or is empty.
    User,
    /// The password is empty.
    Empty,
    /// The password is longer than what a slow hash is compared with.
    TooLong,
    /// RFC 7617, section 2: no control characters.
    ControlCharacter,
    /// The kernel has no random bytes, or the hash no memory.
    NotHashed,
}

impl fmt::Display for PasswordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User => {
                f.write_str("the name of a user is empty, or has \":\", \"#\" or a control character")
            }
            Self::Empty => f.write_str("the password is empty"),
            Self::TooLong => write!(f, "the password has more than {PASSWORD_MAX} bytes"),
            Self::ControlCharacter => f.write_str("the password has a control character"),
            Self::NotHashed => f.write_str("the password could not be hashed"),
        }
    }
}

/// Hash of a password for a password file, with a new salt: yescrypt with the parameters of crypt(3), 16 MiB of memory.
/// Takes some milliseconds.
pub fn password_hash(password: &[u8]) -> Result<String, PasswordError> {
    match password {
        [] => return Err(PasswordError::Empty),
        _ if password.len() > PASSWORD_MAX => return Err(PasswordError::TooLong),
        _ if password.iter().any(u8::is_ascii_control) => return Err(PasswordError::ControlCharacter),
        _ => {}
    }
    let mut salt = [0; 16];
    let filled = rustix::rand::getrandom(&mut salt, rustix::rand::GetRandomFlags::empty());
    if filled != Ok(salt.len()) {
        return Err(PasswordError::NotHashed);
    }
    let hash = Yescrypt::default().hash_password_with_salt(password, &salt);
    hash.map(|hash| hash.to_string()).map_err(|_| PasswordError::NotHashed)
}

/// Line of a password file: the user and [`password_hash()`].
pub fn password_line(user: &[u8], password: &[u8]) -> Result<Vec<u8>, PasswordError> {
    if user.is_empty() || user.iter().any(|byte| byte.is_ascii_control() || matches!(byte, b':' | b'#')) {
        return Err(PasswordError::User);
    }
    Ok([user, b":", password_hash(password)?.as_bytes(), b"\n"].concat())
}

/// Result of checking a password against a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PasswordVerdict {
    Fits,
    Differs,
    /// The hash cannot be read.
    Malformed,
}

impl HashKind {
    /// Kind of the hash `text`; `None` if it is not supported.
    pub(super) fn of(text: &[u8]) -> Option<Self> {
        const KINDS: [(&str, HashKind); 13] = [
            ("$apr1$", HashKind::Md5("$apr1$")),
            ("{PLAIN}", HashKind::Plain),
            ("{SSHA}", HashKind::SaltedSha),
            ("{SHA}", HashKind::Sha),
            ("$1$", HashKind::Md5("$1$")),
            ("$2a$", HashKind::Bcrypt),
            ("$2b$", HashKind::Bcrypt),
            ("$2x$", HashKind::Bcrypt),
            ("$2y$", HashKind::Bcrypt),
            ("$5$", HashKind::Sha2),
            ("$6$", HashKind::Sha2),
            ("$y$", HashKind::Yescrypt),
            ("", HashKind::Des),
        ];
        if text.len() > HASH_MAX {
            return None;
        }
        let (_, kind) = KINDS.iter().find(|(mark, _)| text.starts_with(mark.as_bytes()))?;
        (*kind != Self::Des || des::salt(text).is_some()).then_some(*kind)
    }

    /// Returns `true` if computing it takes well under a tenth of a millisecond.
    pub(super) fn is_quick(self) -> bool {
        matches!(self, Self::Plain | Self::Sha | Self::SaltedSha)
    }

    /// Estimated cost in microseconds of one core; `None` if the parameters cannot be read, or need more memory than
    /// [`MEMORY_MAX`].
    pub(super) fn work_us(self, hash: &[u8]) -> Option<u64> {
        match self {
            Self::Plain | Self::Sha | Self::SaltedSha => Some(1),
            Self::Md5(_) => Some(500),
            Self::Des => Some(300),
            Self::Bcrypt => {
                let cost = tw_conf::units::number(hash.get(4..6)?)?;
                1_u64.checked_shl(u32::try_from(cost).ok()?)?.checked_mul(50)
            }
            Self::Sha2 => match field(hash)?.strip_prefix(b"rounds=") {
                Some(rounds) => tw_conf::units::number(rounds),
                None => Some(5_000),
            },
            Self::Yescrypt => {
                // crypt(3) writes only the parameters N and r. Hashes with further parameters are refused because of
                // the time that they may take.
                let text = text(field(hash)?).filter(|text| text.len() <= 4)?;
                let params: yescrypt::Params = text.parse().ok()?;
                let size = params.n().checked_mul(128 * u64::from(params.r()))?;
                (size <= MEMORY_MAX).then_some(size / 1000)
            }
        }
    }

    /// Compares a password with a hash of this kind, in a time that does not depend on the position of a difference.
    /// Takes microseconds to seconds, depending on the hash.
    pub(super) fn verify(self, hash: &[u8], password: &[u8]) -> PasswordVerdict {
        // DIFF(nginx): a line cannot make the server compute for an hour, or take all memory.
        if self.work_us(hash).is_none_or(|work| work > WORK_MAX_US) {
            return PasswordVerdict::Malformed;
        }
        match self {
            Self::Plain => of_bytes(&hash["{PLAIN}".len()..], password),
            Self::Sha => {
                let digest = base64::encode(&Sha1::digest(password));
                of_bytes(&hash["{SHA}".len()..], &digest)
            }
            Self::SaltedSha => salted_sha(&hash["{SSHA}".len()..], password),
            Self::Md5(mark) => of_bytes(hash, &md5_crypt(mark, &hash[mark.len()..], password)),
            Self::Des => des::salt(hash)
                .map_or(PasswordVerdict::Malformed, |salt| of_bytes(hash, &des::crypt(salt, password))),
            Self::Bcrypt => match std::str::from_utf8(hash).map(|hash| bcrypt::verify(password, hash)) {
                Ok(Ok(true)) => PasswordVerdict::Fits,
                Ok(Ok(false)) => PasswordVerdict::Differs,
                Ok(Err(_)) | Err(_) => PasswordVerdict::Malformed,
            },
            Self::Sha2 => {
                of_result(text(hash).map(|hash| ShaCrypt::default().verify_password(password, hash)))
            }
            // A hash without its digest could not differ from any other.
            Self::Yescrypt
                if hash.rsplit(|byte| *byte == b'$').next().is_none_or(|digest| digest.len() != 43) =>
            {
                PasswordVerdict::Malformed
            }
            Self::Yescrypt => {
                of_result(text(hash).map(|hash| Yescrypt::default().verify_password(password, hash)))
            }
        }
    }
}

/// Text between the mark of a hash and the next `$`.
fn field(hash: &[u8]) -> Option<&[u8]> {
    hash.split(|byte| *byte == b'$').nth(2)
}

fn text(hash: &[u8]) -> Option<&str> {
    std::str::from_utf8(hash).ok()
}

fn of_result(result: Option<password_hash::Result<()>>) -> PasswordVerdict {
    match result {
        Some(Ok(())) => PasswordVerdict::Fits,
        Some(Err(password_hash::Error::PasswordInvalid)) => PasswordVerdict::Differs,
        Some(Err(_)) | None => PasswordVerdict::Malformed,
    }
}

fn of_bytes(one: &[u8], other: &[u8]) -> PasswordVerdict {
    if is_same(one, other) { PasswordVerdict::Fits } else { PasswordVerdict::Differs }
}

/// `{SSHA}`: base64 of SHA-1 of password and salt, then the salt.
fn salted_sha(encoded: &[u8], password: &[u8]) -> PasswordVerdict {
    let mut decoded = Vec::new();
    if base64::decode(encoded, Alphabet::Standard, &mut decoded).is_err() {
        return PasswordVerdict::Differs;
    }
    let Some((digest, salt)) = decoded.split_at_checked(20) else { return PasswordVerdict::Differs };
    let mut sha = Sha1::new();
    sha.update(password);
    sha.update(salt);
    of_bytes(digest, &sha.finalize())
}

/// md5-crypt: a thousand rounds of MD5. `salt` is what follows the mark: up to eight bytes, or up to a `$`.
fn md5_crypt(mark: &str, salt: &[u8], password: &[u8]) -> Vec<u8> {
    let salt = salt.split(|byte| *byte == b'$').next().unwrap_or_default();
    let salt = &salt[..salt.len().min(8)];

    let mut inner = Md5::new();
    for part in [password, salt, password] {
        inner.update(part);
    }
    let digest = inner.finalize();
    let mut outer = Md5::new();
    for part in [password, mark.as_bytes(), salt] {
        outer.update(part);
    }
    for chunk in password.chunks(digest.len()) {
        outer.update(&digest[..chunk.len()]);
    }
    let mut length = password.len();
    while length > 0 {
        match length & 1 {
            1 => outer.update([0]),
            _ => outer.update(&password[..1]),
        }
        length >>= 1;
    }
    let mut digest = outer.finalize();
    for round in 0..1000 {
        let mut md5 = Md5::new();
        let (first, last) = if round & 1 == 1 { (password, &digest[..]) } else { (&digest[..], password) };
        md5.update(first);
        if round % 3 != 0 {
            md5.update(salt);
        }
        if round % 7 != 0 {
            md5.update(password);
        }
        md5.update(last);
        digest = md5.finalize();
    }

    let mut out = [mark.as_bytes(), salt, b"$"].concat();
    for [a, b, c] in [[0, 6, 12], [1, 7, 13], [2, 8, 14], [3, 9, 15], [4, 10, 5]] {
        let bits = u32::from(digest[a]) << 16 | u32::from(digest[b]) << 8 | u32::from(digest[c]);
        push_digits(&mut out, bits, 4);
    }
    push_digits(&mut out, digest[11].into(), 2);
    out
}

/// Appends `count` digits, the lowest first.
fn push_digits(out: &mut Vec<u8>, mut bits: u32, count: usize) {
    for _ in 0..count {
        out.push(DIGITS[(bits & 63) as usize]);
        bits >>= 6;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_every_kind() {
        // Made by crypt(3) of libxcrypt and by `openssl passwd`.
        for (hash, password) in HASHES {
            let kind = HashKind::of(hash.as_bytes()).unwrap();
            let verify = |password: &[u8]| kind.verify(hash.as_bytes(), password);
            assert_eq!(verify(password.as_bytes()), PasswordVerdict::Fits, "{hash}");
            assert_eq!(verify(b"pasSword"), PasswordVerdict::Differs, "{hash}");
            assert_eq!(verify(b""), PasswordVerdict::Differs, "{hash}");
        }
    }

    const HASHES: &[(&str, &str)] = &[
        ("sa3tHJ3/KuYvI", "password"),
        ("./Vt8pVhaLKv.", "p"),
        ("ZzDvgz2tOAvf.", "a long password"),
        ("9Alnm5V0Wai9g", "pässword"),
        ("$1$salt$qJH7.N4xYta3aEG/dfqo/0", "password"),
        ("$1$saltsalt$sMHyQH5AQ.mVfSWsvYOe4/", "a password of more than sixteen bytes"),
        ("$apr1$saltsalt$yAAkm4libquA.ZWLHbSBq/", "password"),
        ("$apr1$x$PI/3WflFdXDRxHXCckmwU.", "another, longer password"),
        ("$2y$04$saltsaltsaltsaltsaltsOh9rCgsOi8IYqmtEm1s6duinLpzU3Bba", "password"),
        ("$2a$04$saltsaltsaltsaltsaltsOh9rCgsOi8IYqmtEm1s6duinLpzU3Bba", "password"),
        ("$2b$05$saltsaltsaltsaltsaltsOATRX/6atxIGssvPX6ppxamfEmZu0WwC", "password"),
        ("$5$saltstring$OH4IDuTlsuTYPdED1gsuiRMyTAwNlRWyA6Xr3I4/dQ5", "password"),
        (
            "$6$saltstring$adDbXsJjcDlq2662QPgd.tkSOVmnG9Tt3oXl4HR60SusC3AGjirnDenVZp3DGwLwqy6iYKCzannhaX9DR72nN1",
            "password",
        ),
        (
            "$6$rounds=1000$saltstring$EzTqOEb9gQc3Va/4p4pnqWqp/wIh1Otyhg9H9E8sV0eDyHGbNBkoMxYIM0ODHPBfmDNWb6wRiAvTriYxeDgb9.",
            "password",
        ),
        ("$y$j75$saltsaltsalt$EJVmvLaWqQibNwAKXpgavjVqkjgw4EyKMKuwMa4X504", "password"),
        ("{PLAIN}password", "password"),
        ("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", "password"),
        ("{SSHA}yI6cZwQadOA1e+/f+T+H3eCQQhRzYWx0", "password"),
    ];

    #[test]
    fn password_lines_can_be_verified() {
        let line = |user: &str| password_line(user.as_bytes(), b"p:w \xff");
        let [one, other] = [line("u").unwrap(), line("u").unwrap()];
        assert_ne!(one, other, "the salt is new each time");
        for line in [one, other] {
            let hash = line.strip_prefix(b"u:").unwrap().strip_suffix(b"\n").unwrap();
            assert!(hash.starts_with(b"$y$j9T$"), "the parameters of crypt(3)");
            let kind = HashKind::of(hash).unwrap();
            assert_eq!(kind.verify(hash, b"p:w \xff"), PasswordVerdict::Fits);
            assert_eq!(kind.verify(hash, b"p:w"), PasswordVerdict::Differs);
        }
        for user in ["", "a:b", "a\nb", "#a", "a\0", "\u{7f}"] {
            assert_eq!(line(user), Err(PasswordError::User), "{user:?}");
        }
    }

    #[test]
    fn unusable_passwords_are_refused() {
        for (password, expected) in [
            (&b""[..], PasswordError::Empty),
            (&[b'a'; PASSWORD_MAX + 1], PasswordError::TooLong),
            (b"a\tb", PasswordError::ControlCharacter),
            (b"a\0", PasswordError::ControlCharacter),
            (b"\x7f", PasswordError::ControlCharacter),
        ] {
            assert_eq!(password_hash(password), Err(expected), "{password:?}");
        }
        assert!(password_hash(&[b'a'; PASSWORD_MAX]).is_ok());
    }

    #[test]
    fn malformed_hashes_are_refused() {
        for hash in ["$7$abc", "$gy$j9T$x$y", "$md5$x", "$2z$10$abc", "*", "!", "", "x", "$", "é"] {
            assert_eq!(HashKind::of(hash.as_bytes()), None, "{hash}");
        }
        assert_eq!(HashKind::of(&[b'a'; HASH_MAX + 1]), None);
        for (hash, expected) in [
            ("{SHA}", PasswordVerdict::Differs),
            ("{SSHA}", PasswordVerdict::Differs),
            ("{SSHA}????", PasswordVerdict::Differs),
            ("{SSHA}AAAA", PasswordVerdict::Differs),
            ("$1$", PasswordVerdict::Differs),
            ("$apr1$", PasswordVerdict::Differs),
            ("$apr1$saltsaltsalt", PasswordVerdict::Differs),
            ("ab", PasswordVerdict::Differs),
            ("password", PasswordVerdict::Differs),
            ("$2y$10$short", PasswordVerdict::Malformed),
            ("$2y$99$saltsaltsaltsaltsaltsOMI2zD1iSSpbEAvlU13j3SjIRN1Lu/Aq", PasswordVerdict::Malformed),
            ("$5$", PasswordVerdict::Malformed),
            ("$6$salt", PasswordVerdict::Malformed),
            ("$y$", PasswordVerdict::Malformed),
            ("$y$j9T$abcd$", PasswordVerdict::Malformed),
            // Computing these would take hours, or more memory than there is.
            ("$2y$31$saltsaltsaltsaltsaltsOh9rCgsOi8IYqmtEm1s6duinLpzU3Bba", PasswordVerdict::Malformed),
            (
                "$5$rounds=999999999$saltstring$OH4IDuTlsuTYPdED1gsuiRMyTAwNlRWyA6Xr3I4/dQ5",
                PasswordVerdict::Malformed,
            ),
            ("$y$jzT$saltsaltsalt$EJVmvLaWqQibNwAKXpgavjVqkjgw4EyKMKuwMa4X504", PasswordVerdict::Malformed),
            (
                "$y$j75/zzzz$saltsaltsalt$EJVmvLaWqQibNwAKXpgavjVqkjgw4EyKMKuwMa4X504",
                PasswordVerdict::Malformed,
            ),
            ("$y$@@@$abcd$0000000000000000000000000000000000000000000", PasswordVerdict::Malformed),
        ] {
            let kind = HashKind::of(hash.as_bytes()).unwrap();
            for password in ["", "password", "\u{0}"] {
                assert_eq!(kind.verify(hash.as_bytes(), password.as_bytes()), expected, "{hash}");
            }
        }
        assert_eq!(HashKind::Plain.verify(b"{PLAIN}", b""), PasswordVerdict::Fits);
    }
}
