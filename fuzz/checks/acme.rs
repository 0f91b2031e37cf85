//! What must hold for anything that an authority says, and for any word of an operator about it: no panic, the same every time, and
//! nothing that leaves its line of the log.

use tw_acme::{AccountKey, Identifier, KeyType, Url, describe};

pub(crate) fn check(data: &[u8]) {
    let texts = describe(data);
    assert!(texts.iter().all(|text| !text.contains(char::is_control)), "{texts:?}");
    assert_eq!(texts, describe(data));
    let _ = (KeyType::parse(data), AccountKey::read(data).is_ok());
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(url) = Url::parse(text) {
        assert!(!url.host().is_empty() && url.port() > 0);
        assert_eq!(Url::parse(url.as_str()), Ok(url));
    }
    let mut names = Vec::new();
    if Identifier::add(text, &mut names).is_ok() {
        assert!(!names.is_empty());
        for name in names.iter().map(ToString::to_string) {
            assert!(name.bytes().all(|byte| byte.is_ascii_graphic()), "{name:?}");
            let mut again = Vec::new();
            assert!(Identifier::add(&name, &mut again).is_ok() && names.contains(&again[0]), "{name:?}");
        }
    }
}
