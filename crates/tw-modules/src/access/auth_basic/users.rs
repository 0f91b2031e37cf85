//! Files of users and their passwords: `name:hash[:comment]`, one per line.

use std::collections::HashMap;
use std::sync::Arc;

use tw_module_support::cached_files::CachedFormat;

use super::hash::HashKind;

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Bytes of a file of users.
    pub(super) const FILE_SIZE_MAX: u64 = 16 << 20, bytes, "nobody is let in, and the error log says why";
    /// Bytes of files of users kept in memory by a configuration.
    pub(super) const KEPT_SIZE_MAX: u64 = 32 << 20, bytes, "the file used longest ago is read again when it is needed";
}

/// Files of users.
pub(super) static USERS: CachedFormat<Users> = CachedFormat {
    size_max: FILE_SIZE_MAX,
    kept_size_max: KEPT_SIZE_MAX,
    parse: |text| Ok(Users::parse(text)),
};

/// Users and the hashes of their passwords.
#[derive(Debug, Default)]
pub(super) struct Users {
    hashes: HashMap<Box<[u8]>, Arc<[u8]>>,
    /// A hash of the kind that most users have, if that is slow.
    decoy: Option<(HashKind, Arc<[u8]>)>,
}

impl Users {
    /// Reads a file. Of several lines of a user the first counts.
    pub(super) fn parse(text: &[u8]) -> Self {
        let mut users = HashMap::new();
        for line in text.split(|byte| *byte == b'\n') {
            if matches!(line.first(), None | Some(b'#' | b'\r')) {
                continue;
            }
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let hash =
                line[colon + 1..].split(|byte| matches!(byte, b':' | b'\r')).next().unwrap_or_default();
            users.entry(line[..colon].into()).or_insert_with(|| hash.into());
        }
        let decoy = decoy(&users);
        Self { hashes: users, decoy }
    }

    /// The hash of a user's password.
    pub(super) fn hash_of(&self, user: &[u8]) -> Option<Arc<[u8]>> {
        self.hashes.get(user).cloned()
    }

    /// Slow hash to compare with the password of an unknown user, so that the response takes as long as for most known
    /// ones.
    pub(super) fn decoy(&self) -> Option<(HashKind, Arc<[u8]>)> {
        self.decoy.clone()
    }
}

/// A hash of the most common kind, if that kind is slow.
fn decoy(users: &HashMap<Box<[u8]>, Arc<[u8]>>) -> Option<(HashKind, Arc<[u8]>)> {
    let mut kinds: Vec<(HashKind, usize, &Arc<[u8]>)> = Vec::new();
    for hash in users.values() {
        let Some(kind) = HashKind::of(hash) else { continue };
        match kinds.iter_mut().find(|(hash_kind, ..)| *hash_kind == kind) {
            Some((_, count, _)) => *count += 1,
            None => kinds.push((kind, 1, hash)),
        }
    }
    let (kind, _, hash) = kinds.into_iter().max_by_key(|(_, count, _)| *count)?;
    (!kind.is_quick()).then(|| (kind, hash.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_users() {
        let users = Users::parse(
            b"# c:omment\n\nplain:{PLAIN}x\r\nshell:hash:comment:more\nplain:second\n:empty\nnocolon\n\r:a\n sp:b\nlast:end",
        );
        let hash = |user: &str| {
            users.hash_of(user.as_bytes()).map(|hash| String::from_utf8_lossy(&hash).into_owned())
        };
        for (user, expected) in [
            ("plain", Some("{PLAIN}x")),
            ("shell", Some("hash")),
            ("", Some("empty")),
            (" sp", Some("b")),
            ("last", Some("end")),
            ("nocolon", None),
            ("# c", None),
            ("omment", None),
            ("plai", None),
            ("Plain", None),
        ] {
            assert_eq!(hash(user), expected.map(str::to_owned), "{user}");
        }
        assert_eq!(Users::parse(b"").hashes.len(), 0);
    }

    #[test]
    fn a_decoy_is_of_the_most_common_kind() {
        for (text, expected) in [
            ("", None),
            ("a:{PLAIN}x\nb:{PLAIN}y\nc:$apr1$z", None),
            ("a:{PLAIN}x\nb:$apr1$z\nc:$apr1$z", Some(HashKind::Md5("$apr1$"))),
            ("a:$7$x\nb:$7$y\nc:$6$z", Some(HashKind::Sha2)),
        ] {
            let decoy = Users::parse(text.as_bytes()).decoy();
            assert_eq!(decoy.map(|(kind, _)| kind), expected, "{text}");
        }
    }
}
