//! `member=` of `cache_path`: the directories of a cache that has several, with their sizes and weights.
//!
//! The first directory of the directive is a member, too; `member=` may name it again to say its size. The size of a member is its
//! limit and its weight. Members without a size share what `max_size` leaves.

use std::ffi::CString;

use tw_conf::units;
use tw_log::Text;

use super::device::CacheDevice;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Directories of one cache (`member=`).
    const MEMBERS_MAX: usize = 64, count, "the configuration is refused";
}

/// Member as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawMember {
    path: Box<[u8]>,
    size: Option<u64>,
    is_draining: bool,
    device: Option<Box<[u8]>>,
}

/// Directory of a cache that has several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberPath {
    /// Directory.
    pub dir: CString,
    /// Share of the keys that it gets; 0 while it is drained.
    pub weight: u64,
    /// Maximum size of its files in bytes; `u64::MAX` is no limit.
    pub max_size: u64,
    /// Share of the memory of the index, out of the sum of all members.
    pub keys_share: u64,
    /// Device with its segments; without one they are files in `dir`.
    pub device: Option<CacheDevice>,
}

impl RawMember {
    /// Reads `PATH[:SIZE][:device=DEVICE][:drain]`. Returns `None` if it is invalid.
    pub(crate) fn read(value: &[u8]) -> Option<Self> {
        let (mut path, mut size, mut is_draining, mut device) = (value, None, false, None);
        if let Some(rest) = path.strip_suffix(b":drain") {
            (path, is_draining) = (rest, true);
        }
        if let Some(at) = path.windows(DEVICE.len()).position(|part| part == DEVICE) {
            device = Some(&path[at + DEVICE.len()..]);
            path = &path[..at];
        }
        if let Some(colon) = path.iter().rposition(|byte| *byte == b':')
            && let Some(given) = terabytes(&path[colon + 1..])
        {
            (path, size) = (&path[..colon], Some(given));
        }
        // A line of the file that identifies members has one path.
        let is_path = |path: &[u8]| !path.is_empty() && !path.iter().any(u8::is_ascii_control);
        let is_valid = is_path(path) && device.is_none_or(is_path) && size != Some(0);
        is_valid.then(|| Self { path: path.into(), size, is_draining, device: device.map(Box::from) })
    }
}

/// Parameter of a member with the path of its device.
const DEVICE: &[u8] = b":device=";

/// A size, also with the suffix `t`.
fn terabytes(text: &[u8]) -> Option<u64> {
    match text.split_last() {
        Some((b't' | b'T', number)) => units::number(number)?.checked_mul(1 << 40),
        _ => units::offset(text),
    }
}

/// Adds the first directory, whose device is `device`, to the members that are written, and checks them. The error is a message.
pub(crate) fn complete(
    members: &mut Vec<RawMember>,
    first: &[u8],
    device: Option<&[u8]>,
    max_size: u64,
) -> Result<(), String> {
    if members.is_empty() {
        return Ok(());
    }
    let is_first = |member: &&mut RawMember| *without_slash(&member.path) == *without_slash(first);
    match members.iter_mut().find(is_first) {
        None => {
            let device = device.map(Box::from);
            members.insert(0, RawMember { path: first.into(), size: None, is_draining: false, device });
        }
        Some(member) if device.is_some() && member.device.is_some() => {
            return Err(format!("member \"{}\" has two devices", Text(&member.path)));
        }
        Some(member) => member.device = member.device.take().or(device.map(Box::from)),
    }
    for (at, member) in members.iter().enumerate() {
        let is_same = |other: &RawMember| *without_slash(&other.path) == *without_slash(&member.path);
        if members[..at].iter().any(is_same) {
            return Err(format!("duplicate member \"{}\"", Text(&member.path)));
        }
    }
    if members.len() > MEMBERS_MAX {
        return Err(format!("a cache may have {MEMBERS_MAX} members"));
    }
    if members.iter().all(|member| member.is_draining) {
        return Err("all members are drained, and none is left for new responses".to_owned());
    }
    let stored = members.iter().filter(|member| !member.is_draining);
    let given = stored.filter_map(|member| member.size).try_fold(0, u64::checked_add);
    let given = given.ok_or("the sizes of the members are too large")?;
    let unsized_members = || members.iter().filter(|member| member.size.is_none() && !member.is_draining);
    match unsized_members().next() {
        Some(member) if given > 0 && (max_size == u64::MAX || max_size <= given) => {
            let name = Text(&member.path);
            Err(format!("member \"{name}\" has no size, and \"max_size\" leaves none for it"))
        }
        None if max_size < u64::MAX => {
            Err("\"max_size\" has no effect if each member has a size of its own".to_owned())
        }
        _ => Ok(()),
    }
}

fn without_slash(path: &[u8]) -> &[u8] {
    match path.strip_suffix(b"/") {
        Some(rest) if !rest.is_empty() => without_slash(rest),
        _ => path,
    }
}

/// Returns true if all members have a device, or any.
pub(crate) fn have_devices(members: &[RawMember]) -> (bool, bool) {
    let has = |member: &RawMember| member.device.is_some();
    (members.iter().all(has), members.iter().any(has))
}

/// Limits and weights of members that are [complete](complete); `full` makes a path absolute.
pub(crate) fn resolve(
    members: &[RawMember],
    max_size: u64,
    mut full: impl FnMut(&[u8]) -> CString,
) -> Box<[MemberPath]> {
    let stored = members.iter().filter(|member| !member.is_draining);
    let given = stored.filter_map(|member| member.size).sum::<u64>();
    let sharing = members.iter().filter(|member| member.size.is_none() && !member.is_draining).count() as u64;
    let share = if max_size == u64::MAX { None } else { Some((max_size - given) / sharing.max(1)) };
    let weight = |member: &RawMember| member.size.or(share).unwrap_or(1).max(1);
    members
        .iter()
        .map(|member| MemberPath {
            dir: full(&member.path),
            weight: if member.is_draining { 0 } else { weight(member) },
            max_size: match member.is_draining {
                // What it has may stay until it is not used any more.
                true => member.size.unwrap_or(u64::MAX),
                false => member.size.or(share).unwrap_or(u64::MAX),
            },
            keys_share: weight(member),
            device: member.device.as_deref().map(|path| CacheDevice::of_path(full(path))),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(first: &str, members: &[&str], max_size: u64) -> Result<Vec<(String, u64, u64)>, String> {
        let mut read: Vec<_> =
            members.iter().map(|member| RawMember::read(member.as_bytes()).unwrap()).collect();
        complete(&mut read, first.as_bytes(), None, max_size)?;
        let full = |path: &[u8]| CString::new(path).unwrap();
        let resolved = resolve(&read, max_size, full).into_iter();
        Ok(resolved.map(|m| (m.dir.into_string().unwrap(), m.weight, m.max_size)).collect())
    }

    #[test]
    fn members_share_the_size_of_the_cache() {
        let names = |list: &[(&str, u64, u64)]| -> Result<Vec<(String, u64, u64)>, String> {
            Ok(list.iter().map(|(name, weight, size)| ((*name).to_owned(), *weight, *size)).collect())
        };
        const NONE: u64 = u64::MAX;
        assert_eq!(resolved("/a", &[], 8), names(&[]));
        assert_eq!(
            resolved("/a", &["/b", "/c"], NONE),
            names(&[("/a", 1, NONE), ("/b", 1, NONE), ("/c", 1, NONE)])
        );
        assert_eq!(
            resolved("/a", &["/b", "/c"], 300),
            names(&[("/a", 100, 100), ("/b", 100, 100), ("/c", 100, 100)])
        );
        assert_eq!(resolved("/a", &["/b:2k"], 3072), names(&[("/a", 1024, 1024), ("/b", 2048, 2048)]));
        assert_eq!(
            resolved("/a/", &["/b:1t", "/a:2T"], NONE),
            names(&[("/b", 1 << 40, 1 << 40), ("/a", 2 << 40, 2 << 40)])
        );
        assert_eq!(resolved("/a", &["/b:drain"], 100), names(&[("/a", 100, 100), ("/b", 0, NONE)]));
        assert_eq!(
            resolved("/a", &["/a:1g:drain", "/b:c"], NONE),
            names(&[("/a", 0, 1 << 30), ("/b:c", 1, NONE)])
        );
    }

    #[test]
    fn members_may_have_devices() {
        let read = |value: &str| {
            let RawMember { path, size, is_draining, device } = RawMember::read(value.as_bytes()).unwrap();
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            (text(&path), size, is_draining, device.map(|path| text(&path)))
        };
        let device = |path: &str| Some(path.to_owned());
        for (value, expected) in [
            ("/a:device=/dev/b", ("/a".to_owned(), None, false, device("/dev/b"))),
            ("/a:2g:device=/dev/b:drain", ("/a".to_owned(), Some(2 << 30), true, device("/dev/b"))),
            ("/a:device=/dev/pci-0000:00:1f", ("/a".to_owned(), None, false, device("/dev/pci-0000:00:1f"))),
            ("/a:devices", ("/a:devices".to_owned(), None, false, None)),
        ] {
            assert_eq!(read(value), expected, "{value}");
        }
        let complete_with = |members: &[&str], device: Option<&[u8]>| {
            let mut members: Vec<_> =
                members.iter().map(|member| RawMember::read(member.as_bytes()).unwrap()).collect();
            complete(&mut members, b"/a", device, u64::MAX)?;
            Ok::<_, String>(members.into_iter().map(|member| member.device).collect::<Vec<_>>())
        };
        let path: &[u8] = b"/dev/x";
        assert_eq!(complete_with(&["/b"], Some(path)), Ok(vec![Some(path.into()), None]));
        assert_eq!(complete_with(&["/b", "/a/"], Some(path)), Ok(vec![None, Some(path.into())]));
        assert!(complete_with(&["/a:device=/dev/y"], Some(path)).is_err());
    }

    #[test]
    fn invalid_members_are_refused() {
        for value in
            ["", ":1g", ":drain", "/a:0", "/a\nb", "/a:device=", "/a:device=:drain", ":device=/dev/b"]
        {
            assert_eq!(RawMember::read(value.as_bytes()), None, "{value:?}");
        }
        for (first, members, max_size) in [
            ("/a", &["/b", "/b/"][..], u64::MAX),
            ("/a", &["/a:drain", "/b:drain"], u64::MAX),
            ("/a", &["/b:1g"], u64::MAX),
            ("/a", &["/b:1g"], 1 << 30),
            ("/a", &["/a:1g", "/b:1g"], 4 << 30),
        ] {
            assert!(resolved(first, members, max_size).is_err(), "{members:?}");
        }
        let many: Vec<_> = (0..MEMBERS_MAX).map(|nth| format!("/m{nth}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert!(resolved("/a", &many, u64::MAX).is_err());
    }
}
