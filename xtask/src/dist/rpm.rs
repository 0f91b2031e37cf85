//! RPM packages in format 4: a lead, a header of digests, a header of everything else, and a `cpio` archive.
//!
//! A header is a list of tags with values of a type, and a store of the values. The first tag covers all others, so
//! that digests and signatures can be checked as they were made.

use std::collections::{BTreeMap, BTreeSet};

use super::compress::{Effort, md5, sha1, sha256};
use super::elf::Needs;
use super::files::{Content, Entry, Files, Role};
use super::layout::{Layout, read};
use super::{Product, tar_time};
use crate::Failure;

/// Revision of the package of one version.
pub(super) const RELEASE: &str = "1";
/// Shell of all scripts.
const SHELL: &str = "/bin/sh";
/// Version of rpm whose format this is.
const RPM_VERSION: &str = "4.14.0";
/// SHA-256 in the numbers of OpenPGP, for digests of files.
const SHA256: u32 = 8;

/// Tags of the header of digests.
mod digest_tag {
    pub(super) const REGION: u32 = 62;
    pub(super) const SHA1: u32 = 269;
    pub(super) const SHA256: u32 = 273;
    pub(super) const SIZE: u32 = 1000;
    pub(super) const MD5: u32 = 1004;
    pub(super) const PAYLOAD_SIZE: u32 = 1007;
}

/// Tags of the header.
mod tag {
    pub(super) const REGION: u32 = 63;
    pub(super) const LANGUAGES: u32 = 100;
    pub(super) const NAME: u32 = 1000;
    pub(super) const VERSION: u32 = 1001;
    pub(super) const RELEASE: u32 = 1002;
    pub(super) const SUMMARY: u32 = 1004;
    pub(super) const DESCRIPTION: u32 = 1005;
    pub(super) const BUILD_TIME: u32 = 1006;
    pub(super) const BUILD_HOST: u32 = 1007;
    pub(super) const SIZE: u32 = 1009;
    pub(super) const LICENSE: u32 = 1014;
    pub(super) const PACKAGER: u32 = 1015;
    pub(super) const GROUP: u32 = 1016;
    pub(super) const URL: u32 = 1020;
    pub(super) const OS: u32 = 1021;
    pub(super) const ARCHITECTURE: u32 = 1022;
    pub(super) const FILE_SIZES: u32 = 1028;
    pub(super) const FILE_MODES: u32 = 1030;
    pub(super) const FILE_RDEVS: u32 = 1033;
    pub(super) const FILE_TIMES: u32 = 1034;
    pub(super) const FILE_DIGESTS: u32 = 1035;
    pub(super) const FILE_LINKS: u32 = 1036;
    pub(super) const FILE_FLAGS: u32 = 1037;
    pub(super) const FILE_USERS: u32 = 1039;
    pub(super) const FILE_GROUPS: u32 = 1040;
    pub(super) const SOURCE: u32 = 1044;
    pub(super) const FILE_VERIFY: u32 = 1045;
    pub(super) const PROVIDE_NAMES: u32 = 1047;
    pub(super) const REQUIRE_FLAGS: u32 = 1048;
    pub(super) const REQUIRE_NAMES: u32 = 1049;
    pub(super) const REQUIRE_VERSIONS: u32 = 1050;
    pub(super) const RPM_VERSION: u32 = 1064;
    pub(super) const FILE_DEVICES: u32 = 1095;
    pub(super) const FILE_INODES: u32 = 1096;
    pub(super) const FILE_LANGUAGES: u32 = 1097;
    pub(super) const PROVIDE_FLAGS: u32 = 1112;
    pub(super) const PROVIDE_VERSIONS: u32 = 1113;
    pub(super) const DIRECTORY_INDEXES: u32 = 1116;
    pub(super) const BASE_NAMES: u32 = 1117;
    pub(super) const DIRECTORY_NAMES: u32 = 1118;
    pub(super) const PAYLOAD_FORMAT: u32 = 1124;
    pub(super) const PAYLOAD_COMPRESSOR: u32 = 1125;
    pub(super) const PAYLOAD_FLAGS: u32 = 1126;
    pub(super) const FILE_DIGEST_ALGORITHM: u32 = 5011;
    pub(super) const ENCODING: u32 = 5062;
    pub(super) const PAYLOAD_DIGEST: u32 = 5092;
    pub(super) const PAYLOAD_DIGEST_ALGORITHM: u32 = 5093;
}

/// Scripts with the tags of their text and of their program, and the bit of what they require.
const SCRIPTS: &[(&str, u32, u32, u32)] = &[
    ("pre", 1023, 1085, 1 << 9),
    ("post", 1024, 1086, 1 << 10),
    ("preun", 1025, 1087, 1 << 11),
    ("postun", 1026, 1088, 1 << 12),
];

/// Bits of a dependency.
mod sense {
    pub(super) const LESS: u32 = 1 << 1;
    pub(super) const EQUAL: u32 = 1 << 3;
    pub(super) const INTERPRETER: u32 = 1 << 8;
    pub(super) const FOUND: u32 = 1 << 14;
    pub(super) const FORMAT: u32 = 1 << 24;
    pub(super) const CONFIGURATION: u32 = 1 << 28;
}

/// Bits of a file.
mod flag {
    pub(super) const CONFIGURATION: u32 = 1;
    pub(super) const DOCUMENT: u32 = 1 << 1;
    pub(super) const NO_REPLACE: u32 = 1 << 4;
}

/// Values of a tag.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Int16(Vec<u16>),
    Int32(Vec<u32>),
    Text(String),
    Binary(Vec<u8>),
    Texts(Vec<String>),
    /// Text in one language.
    Local(String),
}

/// Tags with their values.
#[derive(Debug, Default)]
struct Header(BTreeMap<u32, Value>);

/// A name of something that a package requires or provides.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Dependency {
    name: String,
    flags: u32,
    version: String,
}

/// Architecture, as packages name it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Architecture {
    pub(super) name: &'static str,
    /// Number in the lead.
    number: u16,
}

/// Architecture of a target, which has to be one that uses glibc.
pub(super) fn architecture(target: &str) -> Option<Architecture> {
    match target {
        "x86_64-unknown-linux-gnu" => Some(Architecture { name: "x86_64", number: 1 }),
        "aarch64-unknown-linux-gnu" => Some(Architecture { name: "aarch64", number: 19 }),
        _ => None,
    }
}

/// Makes the package.
pub(super) fn package(
    product: &Product,
    architecture: Architecture,
    effort: Effort,
) -> Result<Vec<u8>, Failure> {
    let files = Layout::Rpm.files(&product.parts)?;
    let archive = cpio(&files, product.epoch)?;
    let payload = effort.gzip(&archive)?;
    let header = header(product, architecture.name, &files, &payload)?.bytes(tag::REGION);
    let signed = [&header[..], &payload].concat();
    let mut digests = Header::default();
    digests.text(digest_tag::SHA1, &sha1(&header));
    digests.text(digest_tag::SHA256, &sha256(&header));
    digests.number(digest_tag::SIZE, signed.len() as u32);
    digests.0.insert(digest_tag::MD5, Value::Binary(md5(&signed).to_vec()));
    digests.number(digest_tag::PAYLOAD_SIZE, archive.len() as u32);
    let mut out = lead(&format!("tailwater-{}-{RELEASE}", product.version), architecture.number);
    out.extend_from_slice(&digests.bytes(digest_tag::REGION));
    out.resize(out.len().next_multiple_of(8), 0);
    out.extend_from_slice(&signed);
    Ok(out)
}

/// First 96 bytes, which only tools of other formats read.
fn lead(name: &str, architecture: u16) -> Vec<u8> {
    const LINUX: u16 = 1;
    const HEADER_SIGNATURE: u16 = 5;
    let mut lead = vec![0xed, 0xab, 0xee, 0xdb, 3, 0, 0, 0];
    lead.extend_from_slice(&architecture.to_be_bytes());
    lead.extend(name.bytes().take(65));
    lead.resize(76, 0);
    lead.extend_from_slice(&LINUX.to_be_bytes());
    lead.extend_from_slice(&HEADER_SIGNATURE.to_be_bytes());
    lead.resize(96, 0);
    lead
}

/// Files of the package: directories that belong to others are not among them.
fn packaged(files: &Files) -> impl Iterator<Item = (&str, &Entry)> {
    files.iter().filter(|(_, entry)| entry.role != Role::Shared)
}

/// Mode with the kind of file.
fn mode(entry: &Entry) -> u32 {
    let kind = match entry.content {
        Content::File(_) => 0o100_000,
        Content::Link(_) => 0o120_000,
        Content::Directory => 0o040_000,
    };
    kind | entry.mode
}

/// Bytes of an entry in the archive.
fn content(entry: &Entry) -> &[u8] {
    match &entry.content {
        Content::File(bytes) => bytes,
        Content::Link(to) => to.as_bytes(),
        Content::Directory => &[],
    }
}

/// Archive in the format "newc".
fn cpio(files: &Files, epoch: u64) -> Result<Vec<u8>, Failure> {
    const TRAILER: &str = "TRAILER!!!";
    let mut out = Vec::new();
    let mut add = |inode: u32, mode: u32, time: u32, name: &str, content: &[u8]| {
        let links = u32::from(inode > 0);
        let fields =
            [inode, mode, 0, 0, links, time, content.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        out.extend_from_slice(b"070701");
        fields.iter().for_each(|field| out.extend_from_slice(format!("{field:08x}").as_bytes()));
        out.extend_from_slice(name.as_bytes());
        out.push(0);
        out.resize(out.len().next_multiple_of(4), 0);
        out.extend_from_slice(content);
        out.resize(out.len().next_multiple_of(4), 0);
    };
    let time = tar_time(epoch)?;
    for (inode, (path, entry)) in (1..).zip(packaged(files)) {
        add(inode, mode(entry), time, &format!("./{path}"), content(entry));
    }
    add(0, 0, 0, TRAILER, &[]);
    Ok(out)
}

fn header(product: &Product, architecture: &str, files: &Files, payload: &[u8]) -> Result<Header, Failure> {
    let mut header = Header::default();
    let time = tar_time(product.epoch)?;
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    header.0.insert(tag::LANGUAGES, Value::Texts(texts(&["C"])));
    header.text(tag::NAME, "tailwater");
    header.text(tag::VERSION, &product.version);
    header.text(tag::RELEASE, RELEASE);
    let control = read("packaging/deb/control")?;
    let (summary, description) = described(&control).ok_or("packaging/deb/control has no description")?;
    header.0.insert(tag::SUMMARY, Value::Local(summary));
    header.0.insert(tag::DESCRIPTION, Value::Local(description));
    header.number(tag::BUILD_TIME, time);
    header.text(tag::BUILD_HOST, "localhost");
    header.number(tag::SIZE, files.size() as u32);
    header.text(tag::LICENSE, "MIT OR Apache-2.0");
    header.text(tag::PACKAGER, &product.maintainer);
    header.0.insert(tag::GROUP, Value::Local("Unspecified".to_owned()));
    header.text(tag::URL, "https://github.com/tailwater/tailwater");
    header.text(tag::OS, "linux");
    header.text(tag::ARCHITECTURE, architecture);
    header.text(tag::SOURCE, &format!("tailwater-{}-{RELEASE}.src.rpm", product.version));
    header.text(tag::RPM_VERSION, RPM_VERSION);
    header.text(tag::ENCODING, "utf-8");
    for (name, text, program, _) in SCRIPTS {
        header.text(*text, &read(&format!("packaging/rpm/{name}"))?);
        header.text(*program, SHELL);
    }
    header.add_files(files, time);
    let own = format!("{}-{RELEASE}", product.version);
    header.add_dependencies(
        provided(&own, architecture),
        [tag::PROVIDE_NAMES, tag::PROVIDE_FLAGS, tag::PROVIDE_VERSIONS],
    );
    header.add_dependencies(
        required(&own, &product.needs),
        [tag::REQUIRE_NAMES, tag::REQUIRE_FLAGS, tag::REQUIRE_VERSIONS],
    );
    header.text(tag::PAYLOAD_FORMAT, "cpio");
    header.text(tag::PAYLOAD_COMPRESSOR, "gzip");
    header.text(tag::PAYLOAD_FLAGS, "9");
    header.0.insert(tag::PAYLOAD_DIGEST, Value::Texts(vec![sha256(payload)]));
    header.number(tag::PAYLOAD_DIGEST_ALGORITHM, SHA256);
    Ok(header)
}

/// First line and the others of the description in the control file of Debian.
fn described(control: &str) -> Option<(String, String)> {
    let (_, text) = control.split_once("\nDescription: ")?;
    let mut lines = text.lines().map(str::trim);
    let summary = lines.next()?.to_owned();
    Some((summary, lines.collect::<Vec<_>>().join("\n")))
}

fn provided(own: &str, architecture: &str) -> BTreeSet<Dependency> {
    let bits = if architecture == "x86_64" { "x86-64" } else { "aarch-64" };
    let exact =
        |name: String, more: u32| Dependency { name, flags: sense::EQUAL | more, version: own.to_owned() };
    BTreeSet::from([
        exact("tailwater".to_owned(), 0),
        exact(format!("tailwater({bits})"), 0),
        exact("config(tailwater)".to_owned(), sense::CONFIGURATION),
        Dependency { name: "webserver".to_owned(), flags: 0, version: String::new() },
    ])
}

/// Libraries as rpm names them, the programs of the scripts, and the features of the format.
fn required(own: &str, needs: &Needs) -> BTreeSet<Dependency> {
    let plain = |name: &str, flags: u32| Dependency { name: name.to_owned(), flags, version: String::new() };
    let mut all = BTreeSet::from([
        plain("/usr/sbin/groupadd", SCRIPTS[0].3),
        plain("/usr/sbin/useradd", SCRIPTS[0].3),
        Dependency {
            name: "config(tailwater)".to_owned(),
            flags: sense::EQUAL | sense::CONFIGURATION,
            version: own.to_owned(),
        },
    ]);
    let scripts = SCRIPTS.iter().map(|(.., bit)| bit).fold(0, |all, bit| all | bit);
    all.insert(plain(SHELL, sense::INTERPRETER | scripts));
    for (name, version) in [
        ("rpmlib(CompressedFileNames)", "3.0.4-1"),
        ("rpmlib(FileDigests)", "4.6.0-1"),
        ("rpmlib(PayloadFilesHavePrefix)", "4.0-1"),
    ] {
        let flags = sense::LESS | sense::EQUAL | sense::FORMAT;
        all.insert(Dependency { name: name.to_owned(), flags, version: version.to_owned() });
    }
    for (library, versions) in &needs.0 {
        all.insert(plain(&format!("{library}()(64bit)"), sense::FOUND));
        for version in versions {
            all.insert(plain(&format!("{library}({version})(64bit)"), sense::FOUND));
        }
    }
    all
}

impl Header {
    fn text(&mut self, tag: u32, text: &str) {
        self.0.insert(tag, Value::Text(text.to_owned()));
    }

    fn number(&mut self, tag: u32, number: u32) {
        self.0.insert(tag, Value::Int32(vec![number]));
    }

    fn add_dependencies(&mut self, all: BTreeSet<Dependency>, [names, flags, versions]: [u32; 3]) {
        self.0.insert(names, Value::Texts(all.iter().map(|one| one.name.clone()).collect()));
        self.0.insert(flags, Value::Int32(all.iter().map(|one| one.flags).collect()));
        self.0.insert(versions, Value::Texts(all.into_iter().map(|one| one.version).collect()));
    }

    fn add_files(&mut self, files: &Files, time: u32) {
        let all: Vec<_> = packaged(files).collect();
        let numbers = |of: &dyn Fn(&Entry) -> u32| Value::Int32(all.iter().map(|(_, e)| of(e)).collect());
        let texts = |of: &dyn Fn(&Entry) -> String| Value::Texts(all.iter().map(|(_, e)| of(e)).collect());
        let parts: Vec<_> = all.iter().map(|(path, _)| path.rsplit_once('/').unwrap_or(("", path))).collect();
        let directories: BTreeSet<_> = parts.iter().map(|(directory, _)| *directory).collect();
        let index = |directory| {
            directories.iter().position(|candidate| *candidate == directory).unwrap_or_default() as u32
        };
        self.0.insert(
            tag::DIRECTORY_INDEXES,
            Value::Int32(parts.iter().map(|(directory, _)| index(*directory)).collect()),
        );
        self.0.insert(
            tag::BASE_NAMES,
            Value::Texts(parts.iter().map(|(_, name)| (*name).to_owned()).collect()),
        );
        self.0.insert(
            tag::DIRECTORY_NAMES,
            Value::Texts(directories.iter().map(|directory| format!("/{directory}/")).collect()),
        );
        self.0.insert(tag::FILE_SIZES, numbers(&|entry| content(entry).len() as u32));
        self.0
            .insert(tag::FILE_MODES, Value::Int16(all.iter().map(|(_, entry)| mode(entry) as u16).collect()));
        self.0.insert(tag::FILE_RDEVS, Value::Int16(vec![0; all.len()]));
        self.0.insert(tag::FILE_TIMES, numbers(&|_| time));
        self.0.insert(
            tag::FILE_DIGESTS,
            texts(&|entry| match &entry.content {
                Content::File(bytes) => sha256(bytes),
                _ => String::new(),
            }),
        );
        self.0.insert(
            tag::FILE_LINKS,
            texts(&|entry| match &entry.content {
                Content::Link(to) => to.clone(),
                _ => String::new(),
            }),
        );
        self.0.insert(
            tag::FILE_FLAGS,
            numbers(&|entry| match (&entry.content, entry.role) {
                (Content::Directory, _) => 0,
                (_, Role::Configuration) => flag::CONFIGURATION | flag::NO_REPLACE,
                (_, Role::Document) => flag::DOCUMENT,
                (_, Role::Program | Role::Shared) => 0,
            }),
        );
        self.0.insert(tag::FILE_USERS, texts(&|_| "root".to_owned()));
        self.0.insert(tag::FILE_GROUPS, texts(&|_| "root".to_owned()));
        self.0.insert(tag::FILE_VERIFY, numbers(&|_| u32::MAX));
        self.0.insert(tag::FILE_DEVICES, numbers(&|_| 1));
        self.0.insert(tag::FILE_INODES, Value::Int32((1..).take(all.len()).collect()));
        self.0.insert(tag::FILE_LANGUAGES, texts(&|_| String::new()));
        self.number(tag::FILE_DIGEST_ALGORITHM, SHA256);
    }

    /// Index and store, with the tag that covers them.
    fn bytes(&self, region: u32) -> Vec<u8> {
        const BINARY: u32 = 7;
        const REGION_SIZE: u32 = 16;
        let count = self.0.len() as u32 + 1;
        let mut index = Vec::new();
        let mut store = Vec::new();
        let entry = |tag: u32, kind: u32, offset: u32, count: u32| {
            [tag, kind, offset, count].map(u32::to_be_bytes).concat()
        };
        for (tag, value) in &self.0 {
            let (kind, alignment, values, bytes) = value.encode();
            store.resize(usize::next_multiple_of(store.len(), alignment), 0);
            index.extend_from_slice(&entry(*tag, kind, store.len() as u32, values));
            store.extend_from_slice(&bytes);
        }
        let at = store.len() as u32;
        let back = (count * REGION_SIZE).wrapping_neg();
        store.extend_from_slice(&entry(region, BINARY, back, REGION_SIZE));
        let mut out = vec![0x8e, 0xad, 0xe8, 1, 0, 0, 0, 0];
        out.extend_from_slice(&count.to_be_bytes());
        out.extend_from_slice(&(store.len() as u32).to_be_bytes());
        out.extend_from_slice(&entry(region, BINARY, at, REGION_SIZE));
        out.extend_from_slice(&index);
        out.extend_from_slice(&store);
        out
    }
}

impl Value {
    /// Number of the type, alignment, number of values, and their bytes.
    fn encode(&self) -> (u32, usize, u32, Vec<u8>) {
        let ended = |text: &String| [text.as_bytes(), &[0]].concat();
        match self {
            Self::Int16(all) => {
                (3, 2, all.len() as u32, all.iter().flat_map(|number| number.to_be_bytes()).collect())
            }
            Self::Int32(all) => {
                (4, 4, all.len() as u32, all.iter().flat_map(|number| number.to_be_bytes()).collect())
            }
            Self::Text(text) => (6, 1, 1, ended(text)),
            Self::Binary(bytes) => (7, 1, bytes.len() as u32, bytes.clone()),
            Self::Texts(all) => (8, 1, all.len() as u32, all.iter().flat_map(ended).collect()),
            Self::Local(text) => (9, 1, 1, ended(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_region_of_a_header_covers_all_tags() {
        let mut header = Header::default();
        header.text(tag::NAME, "ab");
        header.number(tag::SIZE, 7);
        let bytes = header.bytes(tag::REGION);
        let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        // The header has three tags: "ab" with its end, a byte of alignment, a number, and the end of the region.
        assert_eq!((number(8), number(12)), (3, 4 + 4 + 16));
        assert_eq!((number(16), number(24)), (tag::REGION, 8));
        assert_eq!((number(48), number(56)), (tag::SIZE, 4));
        let end = bytes.len() - 16;
        assert_eq!((number(end), number(end + 8) as i32), (tag::REGION, -48));
    }

    #[test]
    fn archives_end_with_a_trailer() {
        let mut files = Files::default();
        files.add_file("a/b", 0o644, "text");
        let bytes = cpio(&files, 1).unwrap();
        assert!(bytes.starts_with(b"070701") && bytes.len().is_multiple_of(4));
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("./a/b\0") && !text.contains("./a\0"), "directories of others are left out");
        assert!(text.contains("TRAILER!!!"));
    }

    #[test]
    fn descriptions_are_those_of_the_debian_package() {
        let (summary, description) = described("Package: x\nDescription: one\n two\n three\n").unwrap();
        assert_eq!((summary.as_str(), description.as_str()), ("one", "two\nthree"));
    }
}
