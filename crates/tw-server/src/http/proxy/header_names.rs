//! A set of names of fields: a bit for each that the server knows, a list for the others.

use tw_http::Known;

/// Names of fields.
#[derive(Clone, Debug, Default)]
pub struct HeaderNames {
    known: u64,
    /// In lower case.
    others: Vec<Box<[u8]>>,
}

impl HeaderNames {
    /// Adds a name, in any case.
    pub fn add(&mut self, name: &[u8]) {
        match Known::find(name) {
            Some(known) => self.known |= known.bit(),
            None => self.others.push(name.to_ascii_lowercase().into()),
        }
    }

    /// Returns true if the set contains `name`, in any case; `known` is the result of [`Known::find`].
    pub fn has(&self, name: &[u8], known: Option<Known>) -> bool {
        match known {
            Some(known) => self.known & known.bit() != 0,
            None => self.others.iter().any(|other| other.eq_ignore_ascii_case(name)),
        }
    }
}

impl<N: AsRef<[u8]>> FromIterator<N> for HeaderNames {
    fn from_iter<I: IntoIterator<Item = N>>(names: I) -> Self {
        let mut set = Self::default();
        names.into_iter().for_each(|name| set.add(name.as_ref()));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_any_case() {
        let names: HeaderNames = ["Date", "X-Pad"].into_iter().collect();
        for (name, expected) in
            [("date", true), ("DATE", true), ("x-pad", true), ("X-Pads", false), ("Server", false)]
        {
            assert_eq!(names.has(name.as_bytes(), Known::find(name.as_bytes())), expected, "{name}");
        }
    }
}
