//! A database in memory, and the look-up of a value.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use maxminddb::{PathElement, Reader};
use tw_conf::Word;
use tw_core::reloaded_file::FileFormat;
use tw_core::vars::Value;

use super::value::DataValue;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Bytes of a database (geoip2), which is in memory.
    ///
    /// Largest database in bytes. Those of cities have 60 MB to 150 MB, the largest that are sold some 1.5 GB.
    const DATABASE_SIZE_MAX: usize = 2 << 30, bytes, "the configuration is refused; with auto_reload the old one stays in use";
    /// Words of a path in a database (geoip2).
    ///
    /// Most words of a path. The records of all known databases are less than six levels deep.
    const PATH_STEPS_MAX: usize = 16, count, "the configuration is refused";
    /// Bytes of a value in a database (geoip2).
    ///
    /// Longest text or bytes that become the value of a variable. Names of places have less than 200 bytes.
    const VALUE_SIZE_MAX: usize = 16 << 10, bytes, "the variable has its default";
}

/// Addresses that are looked up in a new database, to see that it can be read: the first and the last of its tree, and some that
/// every database knows something about.
const TRIAL_ADDRESSES: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    IpAddr::V4(Ipv4Addr::new(8, 8, 8, 8)),
    IpAddr::V4(Ipv4Addr::BROADCAST),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0x4860, 0x4860, 0, 0, 0, 0, 0x8888)),
];

/// Files with a database.
pub(super) static FORMAT: FileFormat<Database> =
    FileFormat { name: "GeoIP2 database", size_max: DATABASE_SIZE_MAX, parse: Database::parse };

/// A database in memory.
pub(super) struct Database(Reader<Vec<u8>>);

/// Path from the record of an address to a value.
pub(super) struct ValuePath(Vec<PathStep>);

/// Step of a path.
enum PathStep {
    /// Key of a map.
    Key(Box<str>),
    /// Index of an array, from its end if it is negative; or a key that looks like one.
    Index(isize, Box<str>),
}

/// Meaning of the numbers of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Numbers {
    Indexes,
    Keys,
}

impl Database {
    fn parse(content: Vec<u8>) -> Result<Self, String> {
        let database = Self(Reader::from_source(content).map_err(|error| error.to_string())?);
        for addr in TRIAL_ADDRESSES.into_iter().filter(|addr| database.has_family_of(*addr)) {
            let lookup_result = database.0.lookup(addr);
            let decoded =
                lookup_result.and_then(|lookup_result| lookup_result.decode_path::<DataValue<'_>>(&[]));
            decoded.map_err(|error| error.to_string())?;
        }
        Ok(database)
    }

    /// Time at which it was built: seconds since 1970.
    pub(super) fn build_epoch(&self) -> u64 {
        self.0.metadata().build_epoch
    }

    /// A database of IPv4 addresses has nothing about the others.
    fn has_family_of(&self, addr: IpAddr) -> bool {
        addr.is_ipv4() || self.0.metadata().ip_version != 4
    }

    /// Appends the value at `path` of the record of `addr`, if there is one that is no map and no array. Allocates nothing else,
    /// unless the record is not as the path expects.
    pub(super) fn look_up(&self, addr: IpAddr, path: &ValuePath, out: &mut Vec<u8>) -> Value {
        let addr = addr.to_canonical();
        if !self.has_family_of(addr) {
            return Value::Missing;
        }
        let Ok(record) = self.0.lookup(addr) else { return Value::Missing };
        let decode =
            |numbers| path.with_elements(numbers, |elements| record.decode_path::<DataValue<'_>>(elements));
        let data_value = match decode(Numbers::Indexes) {
            // A map where an array was expected.
            Err(_) if path.has_numbers() => decode(Numbers::Keys),
            data_value => data_value,
        };
        match data_value {
            Ok(Some(value)) if value.size() <= VALUE_SIZE_MAX => value.append_to(out),
            Ok(_) | Err(_) => Value::Missing,
        }
    }
}

impl ValuePath {
    /// The path of these words.
    ///
    /// # Errors
    /// The path is too long.
    pub(super) fn new(words: &[Word]) -> Result<Self, String> {
        if words.len() > PATH_STEPS_MAX {
            return Err(format!("more than {PATH_STEPS_MAX} words in a path"));
        }
        Ok(Self(words.iter().map(PathStep::new).collect()))
    }

    fn has_numbers(&self) -> bool {
        self.0.iter().any(|step| matches!(step, PathStep::Index(..)))
    }

    fn with_elements<R>(&self, numbers: Numbers, with: impl FnOnce(&[PathElement<'_>]) -> R) -> R {
        let mut elements = [const { PathElement::Index(0) }; PATH_STEPS_MAX];
        for (element, step) in elements.iter_mut().zip(&self.0) {
            *element = match (step, numbers) {
                (PathStep::Index(index, _), Numbers::Indexes) => PathElement::from(*index),
                (PathStep::Index(_, key) | PathStep::Key(key), _) => PathElement::Key(key),
            };
        }
        with(&elements[..self.0.len()])
    }
}

impl PathStep {
    fn new(word: &Word) -> Self {
        let text = word.lossy();
        let is_number = text.strip_prefix('-').unwrap_or(&text).bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(index) if is_number => Self::Index(index, text.into()),
            _ => Self::Key(text.into()),
        }
    }
}
