//! `proxy_cache_path` and its counterparts for other prefixes: directory, limits and loading of a cache.

pub(crate) mod device;
pub(crate) mod device_format;
pub(crate) mod hedging;
pub(crate) mod member_path;

use std::ffi::CString;
use std::time::Duration;

use tw_cache::{EvictionPolicy, Key, segment};
use tw_conf::{ConfError, Node, Span, Word, units};

pub use device::CacheDevice;
use hedging::Hedging;
pub use member_path::MemberPath;
use member_path::RawMember;

/// The smallest `keys_zone` in bytes, as in nginx.
const KEYS_MIN: u64 = 8192;
/// Directory levels that a name may be spread over, and digits of the name that each may take.
const LEVELS_MAX: usize = 3;

/// Time between two snapshots, if `snapshot=` does not say another one.
pub(crate) const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(300);
/// Parts of a cache that quotas are divided into for its members.
pub(crate) const WHOLE: u32 = 1 << 16;

/// `cache_path` as written.
pub struct RawCachePath {
    path: Word,
    place: CachePath,
    name: Box<[u8]>,
    members: Vec<RawMember>,
    /// Size of segments in bytes (`segment=`), and its position in the configuration.
    segment: Option<(u64, Span)>,
    /// Position of `direct=` in the configuration.
    direct_at: Option<Span>,
    /// Path of the device (`device=`), and its position in the configuration.
    device: Option<(Box<[u8]>, Span)>,
    pool_at: Span,
    fleet_at: Span,
    /// Position in the configuration.
    pub(crate) span: Span,
}

/// Directory and limits of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachePath {
    /// Directory of the cache.
    pub dir: CString,
    /// Digits of the file name that each directory level takes, from the end of the name; 0 ends the list.
    pub levels: [u8; LEVELS_MAX],
    /// Bytes of memory for the index (`keys_zone`).
    pub keys_size: u64,
    /// Time after which an entry without requests is removed.
    pub inactive: Duration,
    /// Maximum size on the disk in bytes; `u64::MAX` is no limit.
    pub max_size: u64,
    /// Bytes that stay free on the file system; 0 is no limit.
    pub min_free: u64,
    /// Steps in which the manager makes room.
    pub manager: StepLimits,
    /// Steps in which the loader reads the directory at the start.
    pub loader: StepLimits,
    /// Treatment of files that nginx has written.
    pub of_nginx: NginxFiles,
    /// Eviction policy.
    pub policy: EvictionPolicy,
    /// Thread pool of the disk; `None` is `default`.
    pub pool: Option<Box<[u8]>>,
    /// Time between two snapshots of the index; `None` without any.
    pub snapshot: Option<Duration>,
    /// Way in which responses are stored.
    pub store: CacheStore,
    /// True if segments are read and written past the page cache.
    pub direct: bool,
    /// Device with the segments; without one they are files in `dir`.
    pub device: Option<CacheDevice>,
    /// Time after which an operation of the disk is slow; `None` without a breaker.
    pub slow: Option<Duration>,
    /// Hedged reads.
    pub hedging: Hedging,
    /// True if bodies are compared with their checksums when they are read from the disk.
    pub verify: bool,
    /// Directories, if there are several; `dir` is the first one that was written.
    pub members: Box<[MemberPath]>,
    /// Fleet that shares its purges.
    pub fleet: Option<Box<[u8]>>,
    /// Share of quotas that counts here, in parts of [`WHOLE`].
    pub(crate) share: u32,
}

/// Way in which responses are stored (`store=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheStore {
    /// One file for each response.
    Files,
    /// Small responses are packed into segments of so many bytes, others have a file each. 0 for a cache with members: each of
    /// them has a default by its size.
    Log(u64),
}

/// Treatment of files that nginx has written into the directory of a cache. They count against its size in both cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NginxFiles {
    /// The files are not served. They stay until a response replaces them or their room is needed.
    Left,
    /// The files are entries (`loader=nginx`).
    TakenOver,
}

/// Size and rest of the steps that long work is divided into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLimits {
    /// Maximum number of files in one step.
    pub files: u64,
    /// Rest between two steps.
    pub sleep: Duration,
    /// Maximum duration of one step.
    pub threshold: Duration,
}

impl StepLimits {
    /// nginx's defaults.
    const USUAL: Self =
        Self { files: 100, sleep: Duration::from_millis(50), threshold: Duration::from_millis(200) };

    /// Reads a parameter behind `manager_` or `loader_`. Returns `None` if it is unknown.
    fn read(&mut self, what: &[u8], value: &[u8]) -> Option<Result<(), ()>> {
        let span = || units::msec(value).ok_or(());
        Some(match what {
            b"files" => units::number(value).map(|files| self.files = files).ok_or(()),
            b"sleep" => span().map(|sleep| self.sleep = sleep),
            b"threshold" => span().map(|threshold| self.threshold = threshold),
            _ => return None,
        })
    }
}

impl RawCachePath {
    /// Reads the directive.
    ///
    /// # Errors
    /// nginx's words.
    pub fn read(node: &Node) -> Result<Self, ConfError> {
        let place = CachePath {
            dir: CString::default(),
            levels: [0; LEVELS_MAX],
            keys_size: 0,
            inactive: Duration::from_secs(600),
            max_size: u64::MAX,
            min_free: 0,
            manager: StepLimits::USUAL,
            loader: StepLimits::USUAL,
            of_nginx: NginxFiles::Left,
            policy: EvictionPolicy::Lru,
            pool: None,
            snapshot: Some(SNAPSHOT_INTERVAL),
            store: CacheStore::Files,
            direct: false,
            device: None,
            slow: None,
            hedging: Hedging::OFF,
            verify: true,
            members: Box::default(),
            fleet: None,
            share: WHOLE,
        };
        let path = node.arg(0)?.clone();
        let (name, members, segment) = (Box::default(), Vec::new(), None);
        let (pool_at, fleet_at, span) = (node.span, node.span, node.span);
        let (direct_at, device) = (None, None);
        let mut raw =
            Self { path, place, name, members, segment, direct_at, device, pool_at, fleet_at, span };
        for word in node.args.iter().skip(1) {
            raw.read_parameter(word).map_err(|message| node.fail(message).at(word.span))?;
        }
        if raw.name.is_empty() {
            return Err(node.fail(format!("\"{}\" must have \"keys_zone\" parameter", node.name)));
        }
        match (raw.place.store, raw.segment) {
            (CacheStore::Log(_), Some((size, _))) => raw.place.store = CacheStore::Log(size),
            // Members have sizes of their own.
            (CacheStore::Log(_), None) if !raw.members.is_empty() => {}
            (CacheStore::Log(_), None) => {
                raw.place.store = CacheStore::Log(segment::default_size(raw.place.max_size));
            }
            (CacheStore::Files, Some((_, span))) => {
                return Err(node.fail("\"segment\" requires \"store=log\"").at(span));
            }
            (CacheStore::Files, None) => {}
        }
        if let (CacheStore::Files, Some(span)) = (raw.place.store, raw.direct_at) {
            return Err(node.fail("\"direct\" requires \"store=log\"").at(span));
        }
        match &raw.device {
            Some((_, span)) if raw.place.store == CacheStore::Files => {
                return Err(node.fail("\"device\" requires \"store=log\"").at(*span));
            }
            Some((_, span)) if raw.segment.is_some() && raw.members.is_empty() => {
                let error = node.fail("\"segment\" has no effect on a device").at(*span);
                return Err(error.hint("\"tailwater cache format --segment SIZE DEVICE\" sets it"));
            }
            _ => {}
        }
        let device = raw.device.as_ref().map(|(path, _)| &**path);
        member_path::complete(&mut raw.members, &raw.path.bytes, device, raw.place.max_size)
            .map_err(|message| node.fail(message))?;
        if !raw.members.is_empty() {
            // The first directory is a member.
            raw.device = None;
            let (are_all_on_devices, is_any) = member_path::have_devices(&raw.members);
            match raw.segment {
                _ if is_any && raw.place.store == CacheStore::Files => {
                    return Err(node.fail("a member with a device requires \"store=log\""));
                }
                Some((_, span)) if are_all_on_devices => {
                    let error = node.fail("\"segment\" has no effect on devices").at(span);
                    return Err(error.hint("\"tailwater cache format --segment SIZE DEVICE\" sets it"));
                }
                _ => {}
            }
        }
        Ok(raw)
    }

    /// Reads one parameter; the error is a message in nginx's words.
    fn read_parameter(&mut self, word: &Word) -> Result<(), String> {
        let text = &*word.bytes;
        let equals = text.iter().position(|byte| *byte == b'=').unwrap_or(text.len());
        let (parameter, value) = (&text[..equals], text.get(equals + 1..).unwrap_or_default());
        let (shown, place) = (tw_log::Text(value), &mut self.place);
        match parameter {
            b"levels" => {
                place.levels = levels(value).ok_or_else(|| format!("invalid \"levels\" \"{word}\""))?;
            }
            // DIFF(nginx): the temporary file of an entry is always beside its final path.
            b"use_temp_path" => {
                units::flag(value).ok_or_else(|| {
                    format!("invalid use_temp_path value \"{shown}\", it must be \"on\" or \"off\"")
                })?;
            }
            b"keys_zone" => self.read_keys_zone(word, value)?,
            // DIFF(nginx): files of nginx are entries only with this parameter.
            b"loader" if value == b"nginx" => place.of_nginx = NginxFiles::TakenOver,
            b"loader" => return Err(format!("invalid loader value \"{shown}\", it must be \"nginx\"")),
            // DIFF(nginx): responses requested once need not evict those requested again.
            b"policy" => {
                place.policy = match value {
                    b"lru" => EvictionPolicy::Lru,
                    b"s3fifo" => EvictionPolicy::S3Fifo,
                    _ => {
                        return Err(format!(
                            "invalid policy value \"{shown}\", it must be \"lru\" or \"s3fifo\""
                        ));
                    }
                };
            }
            // DIFF(nginx): a cache has a thread pool of its own, for all it does.
            b"thread_pool" if value.is_empty() => {
                return Err(format!("invalid thread_pool value \"{word}\""));
            }
            // DIFF(nginx): the order of last use outlives a restart.
            b"snapshot" if value == b"off" => place.snapshot = None,
            b"snapshot" => {
                let interval = units::sec(value).filter(|interval| !interval.is_zero());
                let interval = interval.ok_or_else(|| format!("invalid snapshot value \"{word}\""))?;
                place.snapshot = Some(interval);
            }
            // DIFF(nginx): small responses may be packed into segments.
            b"store" => {
                place.store = match value {
                    b"files" => CacheStore::Files,
                    b"log" => CacheStore::Log(0),
                    _ => {
                        return Err(format!(
                            "invalid store value \"{shown}\", it must be \"files\" or \"log\""
                        ));
                    }
                };
            }
            b"segment" => {
                let range = segment::SEGMENT_SIZE_MIN..=segment::SEGMENT_SIZE_MAX;
                let size = units::offset(value).filter(|size| range.contains(size));
                let size = size.ok_or_else(|| {
                    format!("invalid segment value \"{shown}\", it must be between 4m and 1g")
                })?;
                self.segment = Some((size.next_multiple_of(segment::BLOCK_SIZE), word.span));
            }
            // DIFF(nginx): segments may be read and written past the page cache.
            b"direct" => {
                place.direct = units::flag(value).ok_or_else(|| {
                    format!("invalid direct value \"{shown}\", it must be \"on\" or \"off\"")
                })?;
                self.direct_at = Some(word.span);
            }
            // DIFF(nginx): segments may be on a block device.
            b"device" if value.is_empty() => return Err(format!("invalid device value \"{word}\"")),
            b"device" => self.device = Some((value.into(), word.span)),
            // DIFF(nginx): a slow disk is left alone.
            b"slow" => {
                let slow = units::msec(value).filter(|slow| !slow.is_zero());
                place.slow = Some(slow.ok_or_else(|| format!("invalid slow value \"{word}\""))?);
            }
            // DIFF(nginx): a lookup that the disk delays may request the response from the upstream server.
            b"hedge" | b"hedge_max" => {
                let read = match parameter {
                    b"hedge" => place.hedging.read_delay(value),
                    _ => place.hedging.read_max(value),
                };
                let name = tw_log::Text(parameter);
                read.map_err(|()| format!("invalid {name} value \"{word}\""))?;
            }
            // DIFF(nginx): a changed byte on the disk is noticed.
            b"verify" => {
                place.verify = units::flag(value).ok_or_else(|| {
                    format!("invalid verify value \"{shown}\", it must be \"on\" or \"off\"")
                })?;
            }
            // DIFF(nginx): a cache may have several directories.
            b"member" => {
                let member = RawMember::read(value);
                self.members.push(member.ok_or_else(|| format!("invalid member value \"{word}\""))?);
            }
            // DIFF(nginx): other nodes are purged, too.
            b"fleet" if value.is_empty() => return Err(format!("invalid fleet value \"{word}\"")),
            b"fleet" => (place.fleet, self.fleet_at) = (Some(value.into()), word.span),
            b"thread_pool" => (place.pool, self.pool_at) = (Some(value.into()), word.span),
            b"inactive" => {
                let inactive = units::sec(value);
                place.inactive = inactive.ok_or_else(|| format!("invalid inactive value \"{word}\""))?;
            }
            b"max_size" => {
                let max_size = units::offset(value);
                place.max_size = max_size.ok_or_else(|| format!("invalid max_size value \"{word}\""))?;
            }
            b"min_free" => {
                let min_free = units::offset(value);
                place.min_free = min_free.ok_or_else(|| format!("invalid min_free value \"{word}\""))?;
            }
            _ => {
                let read = if let Some(what) = parameter.strip_prefix(b"manager_") {
                    place.manager.read(what, value)
                } else if let Some(what) = parameter.strip_prefix(b"loader_") {
                    place.loader.read(what, value)
                } else {
                    None
                };
                let shown = tw_log::Text(parameter);
                read.ok_or_else(|| format!("invalid parameter \"{word}\""))?
                    .map_err(|()| format!("invalid {shown} value \"{word}\""))?;
            }
        }
        Ok(())
    }

    /// Reads `keys_zone=NAME:SIZE`.
    fn read_keys_zone(&mut self, word: &Word, value: &[u8]) -> Result<(), String> {
        let invalid = || format!("invalid keys zone size \"{word}\"");
        let colon = value.iter().rposition(|byte| *byte == b':').ok_or_else(invalid)?;
        self.place.keys_size = units::size(&value[colon + 1..]).ok_or_else(invalid)?;
        if self.place.keys_size < KEYS_MIN {
            return Err(format!("keys zone \"{word}\" is too small"));
        }
        self.name = value[..colon].into();
        Ok(())
    }

    /// Name of the zone.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    /// Name of the thread pool, and its position in the configuration.
    pub(crate) fn pool(&self) -> Option<(&[u8], Span)> {
        self.place.pool.as_deref().map(|name| (name, self.pool_at))
    }

    /// Name of the fleet, and its position in the configuration.
    pub(crate) fn fleet(&self) -> Option<(&[u8], Span)> {
        self.place.fleet.as_deref().map(|name| (name, self.fleet_at))
    }

    /// Path of the device, and its position in the configuration.
    pub(crate) fn device(&self) -> Option<(&[u8], Span)> {
        self.device.as_ref().map(|(path, span)| (&**path, *span))
    }

    /// Resolves the directory; `full` makes its path absolute.
    ///
    /// # Errors
    /// A path that no file has.
    pub(crate) fn resolve(self, full: impl Fn(&[u8]) -> CString) -> CachePath {
        let full = |path: &[u8]| {
            let mut dir = full(path).into_bytes();
            while dir.len() > 1 && dir.last() == Some(&b'/') {
                dir.pop();
            }
            CString::new(dir).unwrap_or_default()
        };
        let members = member_path::resolve(&self.members, self.place.max_size, full);
        CachePath { dir: full(&self.path.bytes), members, ..self.place }
    }
}

/// `1:2:2`: one to three levels of one or two digits.
fn levels(text: &[u8]) -> Option<[u8; LEVELS_MAX]> {
    let mut levels = [0; LEVELS_MAX];
    let mut given = text.split(|byte| *byte == b':');
    for level in &mut levels {
        match given.next() {
            Some(b"1") => *level = 1,
            Some(b"2") => *level = 2,
            Some(_) => return None,
            None => break,
        }
    }
    given.next().is_none().then_some(levels)
}

impl CachePath {
    /// Path of the entry with this key: `DIR/c/29/b7f54b2df7773722d382f4809d65029c`, the levels from the end of the name.
    pub fn path(&self, key: Key) -> CString {
        let name = key.hex();
        let mut path = Vec::with_capacity(self.dir.to_bytes().len() + 48);
        path.extend_from_slice(self.dir.to_bytes());
        let mut end = name.len();
        for digits in self.levels.into_iter().map(usize::from).take_while(|digits| *digits > 0) {
            path.push(b'/');
            path.extend_from_slice(&name[end - digits..end]);
            end -= digits;
        }
        path.push(b'/');
        path.extend_from_slice(&name);
        // Digits and a path that came from a C string.
        CString::new(path).unwrap_or_default()
    }

    /// The cache of one of its directories.
    pub(crate) fn of_member(&self, member: &MemberPath) -> Self {
        let sum: u128 = self.members.iter().map(|member| u128::from(member.keys_share)).sum();
        let keys_size = u128::from(self.keys_size) * u128::from(member.keys_share) / sum.max(1);
        let store = match self.store {
            CacheStore::Log(0) => CacheStore::Log(segment::default_size(member.max_size)),
            store => store,
        };
        Self {
            dir: member.dir.clone(),
            max_size: member.max_size,
            store,
            keys_size: u64::try_from(keys_size).unwrap_or(self.keys_size),
            members: Box::default(),
            device: member.device.clone(),
            share: u32::try_from(u128::from(WHOLE) * u128::from(member.keys_share) / sum.max(1))
                .unwrap_or(WHOLE),
            ..self.clone()
        }
    }

    /// Length of the cache directory within a path. That directory is not created while requests are served.
    pub(crate) fn dir_len(&self) -> u32 {
        u32::try_from(self.dir.to_bytes().len()).unwrap_or(u32::MAX)
    }

    /// Path of the snapshot of the records.
    pub(crate) fn record_snapshot_path(&self) -> CString {
        self.own_file("pages")
    }

    /// Path of the file with this name in the directory itself.
    pub(crate) fn own_file(&self, name: &str) -> CString {
        CString::new([self.dir.to_bytes(), b"/", name.as_bytes()].concat()).unwrap_or_default()
    }

    /// Returns true if both have the same files.
    pub(crate) fn is_where(&self, other: &Self) -> bool {
        self.dir == other.dir && self.levels == other.levels
    }

    /// Returns true if `now`, as a member, has the contents of `self`. Those of another device are others.
    pub(crate) fn goes_on_in(&self, now: &Self) -> bool {
        self.is_where(now) && CacheDevice::goes_on(self.device.as_ref(), now.device.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(levels: [u8; 3]) -> CachePath {
        CachePath {
            dir: c"/data".to_owned(),
            levels,
            keys_size: 0,
            inactive: Duration::ZERO,
            max_size: 0,
            min_free: 0,
            manager: StepLimits::USUAL,
            loader: StepLimits::USUAL,
            of_nginx: NginxFiles::Left,
            policy: EvictionPolicy::Lru,
            pool: None,
            snapshot: Some(SNAPSHOT_INTERVAL),
            store: CacheStore::Files,
            direct: false,
            device: None,
            slow: None,
            hedging: Hedging::OFF,
            verify: true,
            members: Box::default(),
            fleet: None,
            share: WHOLE,
        }
    }

    #[test]
    fn files_are_where_nginx_has_them() {
        let key = Key::from_hex(b"b7f54b2df7773722d382f4809d65029c").unwrap();
        for (levels, expected) in [
            ([0, 0, 0], c"/data/b7f54b2df7773722d382f4809d65029c"),
            ([1, 2, 0], c"/data/c/29/b7f54b2df7773722d382f4809d65029c"),
            ([2, 2, 2], c"/data/9c/02/65/b7f54b2df7773722d382f4809d65029c"),
        ] {
            assert_eq!(place(levels).path(key).as_c_str(), expected);
        }
    }

    #[test]
    fn levels_are_one_or_two_digits() {
        assert_eq!(levels(b"1"), Some([1, 0, 0]));
        assert_eq!(levels(b"1:2:2"), Some([1, 2, 2]));
        for bad in [&b""[..], b"3", b"0", b"1:", b":1", b"1:2:2:1", b"12", b"1;2"] {
            assert_eq!(levels(bad), None, "{}", String::from_utf8_lossy(bad));
        }
    }
}
