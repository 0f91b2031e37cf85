//! Libraries that a binary needs, and the versions of their symbols.

use std::collections::{BTreeMap, BTreeSet};

use object::Endianness;
use object::read::elf::{Dyn, ElfFile64, FileHeader};

/// Versions of the symbols that a binary needs, by library; a library without versioned symbols has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Needs(pub(super) BTreeMap<String, BTreeSet<String>>);

impl Needs {
    /// Reads the dynamic section of a binary. A static one needs nothing.
    pub(super) fn of(binary: &[u8]) -> Result<Self, String> {
        Self::read(binary).map_err(|error| format!("the binary is no ELF file: {error}"))
    }

    fn read(binary: &[u8]) -> object::Result<Self> {
        let file = ElfFile64::<Endianness>::parse(binary)?;
        let endian = file.endian();
        let header = file.elf_header();
        let sections = header.sections(endian, binary)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut needs = BTreeMap::<String, BTreeSet<String>>::new();
        if let Some((entries, link)) = sections.dynamic(endian, binary)? {
            let strings = sections.strings(endian, binary, link)?;
            for entry in entries.iter().filter(|entry| entry.tag(endian) == object::elf::DT_NEEDED) {
                needs.entry(text(entry.string(endian, strings)?)).or_default();
            }
        }
        if let Some((mut libraries, link)) = sections.gnu_verneed(endian, binary)? {
            let strings = sections.strings(endian, binary, link)?;
            while let Some((library, mut versions)) = libraries.next()? {
                let known_names = needs.entry(text(library.file(endian, strings)?)).or_default();
                while let Some(version) = versions.next()? {
                    known_names.insert(text(version.name(endian, strings)?));
                }
            }
        }
        Ok(Self(needs))
    }

    /// Adds the needs of another binary.
    pub(super) fn and(mut self, other: Self) -> Self {
        for (library, versions) in other.0 {
            self.0.entry(library).or_default().extend(versions);
        }
        self
    }

    /// Oldest glibc that has all symbols; `None` for a static binary.
    pub(super) fn glibc(&self) -> Option<(u32, u32)> {
        let versions = self.0.values().flatten().filter_map(|version| version.strip_prefix("GLIBC_"));
        versions.filter_map(version).max()
    }

    /// Returns `true` if the binary needs no library.
    pub(super) fn is_static(&self) -> bool {
        self.0.is_empty()
    }
}

/// Major and minor number.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let needs = |versions: &[&str]| {
            let versions = versions.iter().map(|version| (*version).to_owned()).collect();
            Needs(BTreeMap::from([("libc.so.6".to_owned(), versions)]))
        };
        assert_eq!(needs(&["GLIBC_2.9", "GLIBC_2.34", "GLIBC_2.2.5"]).glibc(), Some((2, 34)));
        assert_eq!(needs(&["GCC_3.0"]).glibc(), None);
        assert!(Needs::default().is_static());
    }

    #[test]
    fn this_program_needs_the_libraries_of_its_system() {
        let needs = Needs::of(&std::fs::read(std::env::current_exe().unwrap()).unwrap()).unwrap();
        assert_eq!(needs.glibc().is_some(), cfg!(target_env = "gnu"));
        assert!(Needs::of(b"#!/bin/sh\n").is_err());
    }
}
