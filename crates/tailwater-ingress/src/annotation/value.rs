//! Values of annotations and of the configuration map, as words of directives.

use std::net::IpAddr;

use crate::quote;

/// Kind of a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ValueKind {
    /// Number of seconds, or a time with its unit.
    Seconds,
    /// Number of bytes, with `k`, `m` or `g` after it.
    Size,
    /// Number of kilobytes.
    Kilobytes,
    /// Number.
    Count,
    /// `true` or `on`, `false` or `off`.
    Switch,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// Several of these words.
    AnyOf(&'static [&'static str]),
    /// Any text without variables.
    Text,
    /// One or two texts without variables, separated by a space.
    TwoTexts,
    /// List of ciphers of OpenSSL.
    Ciphers,
}

impl ValueKind {
    /// Words of a directive. `None` if the text is no such value.
    pub fn words(self, text: &str) -> Option<String> {
        let text = text.trim();
        let is_number =
            |text: &str| (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        match self {
            Self::Count => is_number(text).then(|| text.to_owned()),
            Self::Kilobytes => is_number(text).then(|| format!("{text}k")),
            Self::Seconds => {
                let number = text.trim_end_matches(['m', 's', 'h', 'd']);
                match text.get(number.len()..) {
                    _ if !is_number(number) => None,
                    Some("") => Some(format!("{number}s")),
                    Some("ms" | "s" | "m" | "h" | "d") => Some(text.to_owned()),
                    _ => None,
                }
            }
            Self::Size => {
                let number = text.strip_suffix(['k', 'K', 'm', 'M', 'g', 'G']).unwrap_or(text);
                is_number(number).then(|| text.to_owned())
            }
            Self::Switch => switch(text).map(|on| if on { "on" } else { "off" }.to_owned()),
            Self::OneOf(words) => words.contains(&text).then(|| text.to_owned()),
            Self::AnyOf(words) => {
                let words_of_value: Vec<_> = text.split([' ', ',']).filter(|word| !word.is_empty()).collect();
                let are_known =
                    !words_of_value.is_empty() && words_of_value.iter().all(|word| words.contains(word));
                are_known.then(|| words_of_value.join(" "))
            }
            Self::Text => quote::literal(text).filter(|_| !text.is_empty()),
            Self::TwoTexts => {
                let words: Option<Vec<_>> =
                    text.split(' ').filter(|word| !word.is_empty()).map(quote::literal).collect();
                words.filter(|words| (1..=2).contains(&words.len())).map(|words| words.join(" "))
            }
            Self::Ciphers => {
                let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b":!+@_-=., ".contains(&byte);
                quote::literal(text).filter(|_| !text.is_empty() && text.bytes().all(is_known))
            }
        }
    }
}

/// `true` and `on`, `false` and `off`.
pub fn switch(text: &str) -> Option<bool> {
    match text.trim() {
        "true" | "on" => Some(true),
        "false" | "off" => Some(false),
        _ => None,
    }
}

/// Addresses and networks, separated by commas. `None` if one of them is neither.
pub fn networks(text: &str) -> Option<Vec<String>> {
    let network = |text: &str| {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        match bits {
            Some(bits) if bits <= most => Some(format!("{address}/{bits}")),
            Some(_) => None,
            None => Some(address.to_string()),
        }
    };
    let networks: Option<Vec<_>> =
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(network).collect();
    networks.filter(|networks| !networks.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        use ValueKind::{AnyOf, Ciphers, Count, Kilobytes, OneOf, Seconds, Size, Switch, Text, TwoTexts};
        for (kind, text, expected) in [
            (Seconds, "120", Some("120s")),
            (Seconds, "5m", Some("5m")),
            (Seconds, "500ms", Some("500ms")),
            (Seconds, "5sm", None),
            (Seconds, "5; x", None),
            (Seconds, "", None),
            (Size, "8m", Some("8m")),
            (Size, "0", Some("0")),
            (Size, "8mb", None),
            (Size, "-1", None),
            (Kilobytes, "10", Some("10k")),
            (Count, "99999999999", None),
            (Switch, "true", Some("on")),
            (Switch, "off", Some("off")),
            (Switch, "yes", None),
            (OneOf(&["any", "all"]), "any", Some("any")),
            (OneOf(&["any", "all"]), "any; deny all", None),
            (AnyOf(&["error", "timeout"]), "error  timeout", Some("error timeout")),
            (AnyOf(&["error", "timeout"]), "error x", None),
            (Text, "a b", Some("\"a b\"")),
            (Text, "$host", None),
            (TwoTexts, "/a /b", Some("\"/a\" \"/b\"")),
            (TwoTexts, "a b c", None),
            (Ciphers, "HIGH:!aNULL", Some("\"HIGH:!aNULL\"")),
            (Ciphers, "HIGH\"; x", None),
        ] {
            assert_eq!(kind.words(text).as_deref(), expected, "{kind:?} {text:?}");
        }
    }

    #[test]
    fn networks_are_addresses_with_lengths() {
        for (text, expected) in [
            ("10.0.0.0/8, ::1", Some(vec!["10.0.0.0/8", "::1"])),
            ("10.0.0.0/33", None),
            ("10.0.0.0/8;", None),
            ("all", None),
            ("", None),
            (" , ", None),
        ] {
            assert_eq!(
                networks(text),
                expected.map(|all| all.into_iter().map(str::to_owned).collect()),
                "{text}"
            );
        }
    }
}
