//! Flags of `open`, as scripts write them.

use rustix::fs::OFlags;

/// Flags of a word such as `r+`; `None` for others.
pub(crate) fn flags(word: &str) -> Option<OFlags> {
    let append = OFlags::APPEND | OFlags::CREATE;
    let new = OFlags::TRUNC | OFlags::CREATE;
    Some(match word {
        "r" => OFlags::RDONLY,
        "r+" => OFlags::RDWR,
        "rs+" => OFlags::RDWR | OFlags::SYNC,
        "w" => OFlags::WRONLY | new,
        "wx" => OFlags::WRONLY | new | OFlags::EXCL,
        "w+" => OFlags::RDWR | new,
        "wx+" => OFlags::RDWR | new | OFlags::EXCL,
        "a" => OFlags::WRONLY | append,
        "ax" => OFlags::WRONLY | append | OFlags::EXCL,
        "as" => OFlags::WRONLY | append | OFlags::SYNC,
        "a+" => OFlags::RDWR | append,
        "ax+" => OFlags::RDWR | append | OFlags::EXCL,
        "as+" => OFlags::RDWR | append | OFlags::SYNC,
        _ => return None,
    })
}

/// True if a file that is opened with these flags may be changed.
pub(crate) fn changes(flags: OFlags) -> bool {
    flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_reading_changes_nothing() {
        for word in ["a", "ax", "a+", "ax+", "as", "as+", "r", "r+", "rs+", "w", "wx", "w+", "wx+"] {
            assert_eq!(changes(flags(word).unwrap()), word != "r", "{word}");
        }
        assert_eq!(flags("rw"), None);
    }
}
