//! Groups of the key exchange (`ssl_ecdh_curve`, Curves and Groups).

use rustls::crypto::SupportedKxGroup;
use rustls::crypto::aws_lc_rs::kx_group::{
    MLKEM768, MLKEM1024, SECP256R1, SECP256R1MLKEM768, SECP384R1, X25519, X25519MLKEM768,
};

use super::p521::SECP521R1;
use super::{Selection, WordError};

/// A group of rustls.
pub type Group = &'static dyn SupportedKxGroup;

/// One group and all its names.
struct NamedGroup {
    names: &'static [&'static str],
    group: Option<Group>,
}

const KNOWN: &[NamedGroup] = &[
    NamedGroup { names: &["X25519"], group: Some(X25519) },
    NamedGroup { names: &["prime256v1", "P-256", "secp256r1"], group: Some(SECP256R1) },
    NamedGroup { names: &["secp384r1", "P-384"], group: Some(SECP384R1) },
    NamedGroup { names: &["X25519MLKEM768"], group: Some(X25519MLKEM768) },
    NamedGroup { names: &["SecP256r1MLKEM768"], group: Some(SECP256R1MLKEM768) },
    NamedGroup { names: &["MLKEM768"], group: Some(MLKEM768) },
    NamedGroup { names: &["MLKEM1024"], group: Some(MLKEM1024) },
    NamedGroup { names: &["secp521r1", "P-521"], group: Some(SECP521R1) },
    NamedGroup { names: &["X448"], group: None },
    NamedGroup { names: &["MLKEM512"], group: None },
    NamedGroup { names: &["SecP384r1MLKEM1024"], group: None },
    NamedGroup { names: &["secp224r1", "P-224"], group: None },
    NamedGroup { names: &["secp192r1", "prime192v1", "P-192"], group: None },
    NamedGroup { names: &["secp256k1"], group: None },
    NamedGroup { names: &["brainpoolP256r1", "brainpoolP256r1tls13"], group: None },
    NamedGroup { names: &["brainpoolP384r1", "brainpoolP384r1tls13"], group: None },
    NamedGroup { names: &["brainpoolP512r1", "brainpoolP512r1tls13"], group: None },
    NamedGroup { names: &["ffdhe2048"], group: None },
    NamedGroup { names: &["ffdhe3072"], group: None },
    NamedGroup { names: &["ffdhe4096"], group: None },
    NamedGroup { names: &["ffdhe6144"], group: None },
    NamedGroup { names: &["ffdhe8192"], group: None },
];

/// Default groups: OpenSSL 3.5's, as far as they are offered.
pub fn default_groups() -> Vec<Group> {
    vec![X25519MLKEM768, X25519, SECP256R1, SECP384R1]
}

/// Groups selected by a string: `auto`, or names with colons between them. As in OpenSSL 3.5, `?` before a name
/// ignores it if unknown, `*` (send a key share) has no effect here, and slashes separate as well.
///
/// # Errors
/// An unknown name, or only groups that are never offered.
pub fn groups(words: &str) -> Result<Selection<Group>, WordError> {
    let mut selected = Selection { chosen: Vec::new(), never: Vec::new() };
    for word in words.split([':', '/']).map(str::trim) {
        if word == "auto" || word == "DEFAULT" {
            default_groups().into_iter().for_each(|group| add(&mut selected.chosen, group));
            continue;
        }
        let name = word.trim_start_matches(['?', '*']);
        let named_group = KNOWN.iter().find(|named_group| {
            named_group.names.iter().any(|candidate| candidate.eq_ignore_ascii_case(name))
        });
        match named_group.map(|named_group| named_group.group) {
            Some(Some(group)) => add(&mut selected.chosen, group),
            Some(None) => selected.never.push(name.to_owned()),
            None if word.starts_with(['?', '*']) && word.contains('?') => {}
            None => return Err(WordError::Unknown(word.to_owned())),
        }
    }
    if selected.chosen.is_empty() { Err(WordError::NeverOffered(selected.never)) } else { Ok(selected) }
}

/// Returns true if a key exchange by one of these groups cannot be undone by a quantum computer later.
pub fn has_post_quantum(groups: &[Group]) -> bool {
    const POST_QUANTUM: [&dyn SupportedKxGroup; 4] = [X25519MLKEM768, SECP256R1MLKEM768, MLKEM768, MLKEM1024];
    groups.iter().any(|group| POST_QUANTUM.iter().any(|candidate| candidate.name() == group.name()))
}

fn add(chosen: &mut Vec<Group>, group: Group) {
    if chosen.iter().all(|other| other.name() != group.name()) {
        chosen.push(group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(words: &str) -> Result<Vec<u16>, WordError> {
        groups(words).map(|selected| selected.chosen.iter().map(|group| u16::from(group.name())).collect())
    }

    #[test]
    fn examples_of_the_guide_keep_the_post_quantum_group() {
        let guide = include_str!("../../../../docs/tls.md");
        let lists: Vec<_> =
            guide.lines().filter_map(|line| line.trim().strip_prefix("ssl_ecdh_curve ")).collect();
        assert!(!lists.is_empty());
        for list in lists {
            let chosen = groups(list.split(';').next().unwrap()).unwrap().chosen;
            assert!(has_post_quantum(&chosen), "{list}");
        }
    }

    #[test]
    fn post_quantum_groups() {
        for (words, expected) in [
            ("auto", true),
            ("X25519:SecP256r1MLKEM768", true),
            ("X25519:prime256v1:secp384r1", false),
            ("secp521r1", false),
        ] {
            assert_eq!(has_post_quantum(&groups(words).unwrap().chosen), expected, "{words}");
        }
    }

    #[test]
    fn words() {
        for (words, expected) in [
            ("auto", &[0x11ec, 29, 23, 24][..]),
            ("X25519MLKEM768:X25519:prime256v1:secp384r1", &[0x11ec, 29, 23, 24]),
            ("P-256:P-384:x25519:prime256v1", &[23, 24, 29]),
            ("?NewOne:*X25519/?P-256", &[29, 23]),
            ("SecP256r1MLKEM768:MLKEM1024:MLKEM768", &[0x11eb, 0x0202, 0x0201]),
            ("X25519:secp521r1", &[29, 25]),
        ] {
            assert_eq!(codes(words).as_deref(), Ok(expected), "{words}");
        }
        assert_eq!(groups("X25519:X448:P-224").unwrap().never, ["X448", "P-224"]);
    }

    #[test]
    fn empty_selections_are_refused() {
        assert_eq!(codes("secp224r1"), Err(WordError::NeverOffered(vec!["secp224r1".to_owned()])));
        for word in ["", "nothing", "X25519:"] {
            assert!(matches!(codes(word), Err(WordError::Unknown(_))), "{word}");
        }
    }
}
