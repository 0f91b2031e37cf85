//! Contexts in which a directive may stand, as a set of bits.
//!
//! A plain integer and not a newtype, because records are constants and `HTTP | SERVER | LOCATION` must be one.

/// A set of contexts; a single context is a set of one.
pub type Contexts = u32;

/// Outside of every block.
pub const MAIN: Contexts = 1 << 0;
/// In `events { }`.
pub const EVENTS: Contexts = 1 << 1;
/// In `http { }`.
pub const HTTP: Contexts = 1 << 2;
/// In a `server { }` of `http`.
pub const SERVER: Contexts = 1 << 3;
/// In a `location { }`.
pub const LOCATION: Contexts = 1 << 4;
/// In an `if { }` of a `server`.
pub const IF_IN_SERVER: Contexts = 1 << 5;
/// In an `if { }` of a `location`.
pub const IF_IN_LOCATION: Contexts = 1 << 6;
/// In a `limit_except { }`.
pub const LIMIT_EXCEPT: Contexts = 1 << 7;
/// In an `upstream { }` of `http`.
pub const UPSTREAM: Contexts = 1 << 8;
/// In `stream { }`.
pub const STREAM: Contexts = 1 << 9;
/// In a `server { }` of `stream`.
pub const STREAM_SERVER: Contexts = 1 << 10;
/// In an `upstream { }` of `stream`.
pub const STREAM_UPSTREAM: Contexts = 1 << 11;
/// In `mail { }`.
pub const MAIL: Contexts = 1 << 12;
/// In a `server { }` of `mail`.
pub const MAIL_SERVER: Contexts = 1 << 13;
/// In a block whose directives belong to one module, such as `types`, `match` or `acme_issuer`.
pub const MODULE_BLOCK: Contexts = 1 << 14;
/// In an `upstream { }` of `mail`.
pub const MAIL_UPSTREAM: Contexts = 1 << 15;
/// Everywhere, as `include`.
pub const ANYWHERE: Contexts = (1 << 16) - 1;

/// Name of each context in nginx's documentation, in the order of its lists.
const WORDS: [(Contexts, &str); 16] = [
    (MAIN, "main"),
    (EVENTS, "events"),
    (HTTP, "http"),
    (SERVER, "server"),
    (LOCATION, "location"),
    (IF_IN_SERVER, "if in server"),
    (IF_IN_LOCATION, "if in location"),
    (LIMIT_EXCEPT, "limit_except"),
    (UPSTREAM, "upstream"),
    (STREAM, "stream"),
    (STREAM_SERVER, "server"),
    (STREAM_UPSTREAM, "upstream"),
    (MAIL, "mail"),
    (MAIL_SERVER, "server"),
    (MAIL_UPSTREAM, "upstream"),
    (MODULE_BLOCK, "block of the module"),
];

/// The contexts of a set as nginx's documentation writes them: `http, server, if in location`.
pub fn context_words(contexts: Contexts) -> String {
    if contexts & ANYWHERE == ANYWHERE {
        return "any".to_owned();
    }
    let mut words: Vec<&str> = Vec::new();
    for (context, word) in WORDS {
        if contexts & context != 0 && !words.contains(&word) {
            words.push(word);
        }
    }
    words.join(", ")
}

/// Contexts of the protocol that `context` belongs to; `main` and `events` belong to none.
pub(crate) fn family(context: Contexts) -> Contexts {
    const FAMILIES: [Contexts; 4] = [
        MAIN | EVENTS,
        HTTP | SERVER | LOCATION | IF_IN_SERVER | IF_IN_LOCATION | LIMIT_EXCEPT | UPSTREAM,
        STREAM | STREAM_SERVER | STREAM_UPSTREAM,
        MAIL | MAIL_SERVER | MAIL_UPSTREAM,
    ];
    FAMILIES.into_iter().find(|family| family & context != 0).unwrap_or(context)
}

/// The contexts of a set as someone reads them who has written something in `here`: those of the same protocol, or, if there are
/// none, all with the protocol of those that share their names.
pub(crate) fn context_words_from(here: Contexts, contexts: Contexts) -> String {
    let own = contexts & family(here);
    if own != 0 {
        return context_words(own);
    }
    let of_protocol = |(context, word): (Contexts, &str)| match context {
        STREAM_SERVER | STREAM_UPSTREAM => format!("{word} in stream"),
        MAIL_SERVER | MAIL_UPSTREAM => format!("{word} in mail"),
        _ => word.to_owned(),
    };
    let words = WORDS.into_iter().filter(|(context, _)| contexts & context != 0).map(of_protocol);
    words.collect::<Vec<_>>().join(", ")
}

/// Context inside a block of this name that stands in `context`; `None` if its module decides.
pub fn inside(name: &str, context: Contexts) -> Option<Contexts> {
    const BLOCKS: [(&str, Contexts, Contexts); 15] = [
        ("events", MAIN, EVENTS),
        ("http", MAIN, HTTP),
        ("stream", MAIN, STREAM),
        ("mail", MAIN, MAIL),
        ("server", HTTP, SERVER),
        ("server", STREAM, STREAM_SERVER),
        ("server", MAIL, MAIL_SERVER),
        ("upstream", HTTP, UPSTREAM),
        ("upstream", STREAM, STREAM_UPSTREAM),
        ("upstream", MAIL, MAIL_UPSTREAM),
        ("location", SERVER, LOCATION),
        ("location", LOCATION, LOCATION),
        ("if", SERVER, IF_IN_SERVER),
        ("if", LOCATION, IF_IN_LOCATION),
        ("limit_except", LOCATION, LIMIT_EXCEPT),
    ];
    BLOCKS.iter().find(|(block, outer, _)| *block == name && *outer == context).map(|(_, _, inner)| *inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_sets() {
        let table = [
            (0, ""),
            (MAIN, "main"),
            (HTTP | SERVER | LOCATION, "http, server, location"),
            (LOCATION | IF_IN_LOCATION | LIMIT_EXCEPT, "location, if in location, limit_except"),
            (HTTP | SERVER | STREAM | STREAM_SERVER, "http, server, stream"),
            (ANYWHERE, "any"),
        ];
        for (contexts, expected) in table {
            assert_eq!(context_words(contexts), expected);
        }
    }

    #[test]
    fn words_are_those_of_the_protocol_that_is_written() {
        let pass = LOCATION | IF_IN_LOCATION | STREAM_SERVER;
        for (here, contexts, expected) in [
            (SERVER, pass, "location, if in location"),
            (STREAM, pass, "server"),
            (MAIN, pass, "location, if in location, server in stream"),
            (HTTP, MAIN, "main"),
            (HTTP, STREAM | STREAM_SERVER | MAIL_SERVER, "stream, server in stream, server in mail"),
            (EVENTS, MAIN, "main"),
        ] {
            assert_eq!(context_words_from(here, contexts), expected);
        }
    }
}
