//! Devices with the segments of a cache, as a configuration names them: opened while it is loaded, by the master also for the
//! worker process.
//!
//! The device of a cache with one directory has to be there and formatted. A member of a cache goes without one that is not: the
//! member is left out, and the others go on.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tw_conf::{ConfError, Span};
use tw_log::Text;

use super::device_format::{self, DeviceIdentity};
use super::member_path::MemberPath;
use tw_request::protocol::Resolve;

/// Block device with the segments of a cache, or a file in its place.
#[derive(Debug, Clone)]
pub struct CacheDevice {
    /// Path of the device.
    pub path: CString,
    /// The open device.
    pub fd: Option<Arc<OwnedFd>>,
    /// The device behind the path; `None` if it is not known.
    pub(crate) identity: Option<DeviceIdentity>,
    /// Reason that it could not be opened.
    pub(crate) refusal: Option<Arc<str>>,
}

impl CacheDevice {
    /// A device that is not open.
    pub(crate) fn of_path(path: CString) -> Self {
        Self { path, fd: None, identity: None, refusal: None }
    }

    /// Returns true if `self`, which replaces `before`, need not be opened anew.
    pub(crate) fn goes_on(before: Option<&Self>, now: Option<&Self>) -> bool {
        match (before, now) {
            (None, None) => true,
            // One that is not to be seen now may still be used.
            (Some(before), Some(now)) => {
                before.path == now.path && (now.identity.is_none() || before.identity == now.identity)
            }
            _ => false,
        }
    }
}

impl PartialEq for CacheDevice {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path && self.identity == other.identity
    }
}

impl Eq for CacheDevice {}

/// Opens the device of a cache.
pub(crate) fn open(cx: &mut Resolve<'_>, path: &[u8], at: Span) -> Result<CacheDevice, ConfError> {
    let path = cx.full_path_c(path);
    let shown = Text(path.to_bytes());
    let fd = cx.open_device(path.to_bytes()).map_err(|error| {
        ConfError::new(format!("open() \"{shown}\" failed ({})", tw_base::Errno::from(&error))).at(at)
    })?;
    device_format::check(&fd).map_err(|why| {
        ConfError::new(format!("\"{shown}\" {why}"))
            .at(at)
            .hint(format!("\"tailwater cache format {shown}\" prepares an empty device"))
    })?;
    cx.block.cache_device(path.clone(), at);
    let identity = device_format::identity(&fd);
    Ok(CacheDevice { path, fd: Some(Arc::new(fd)), identity, refusal: None })
}

/// Opens the device of a member, if it has one and that can be opened. Its content is checked before it is used.
pub(crate) fn open_of_member(cx: &mut Resolve<'_>, member: &mut MemberPath, at: Span) {
    let Some(device) = &mut member.device else { return };
    match cx.open_device(device.path.to_bytes()) {
        Ok(fd) => {
            device.identity = device_format::identity(&fd);
            device.fd = Some(Arc::new(fd));
        }
        Err(error) => {
            let why = format!("cannot be opened ({})", tw_base::Errno::from(&error));
            let (shown, dir) = (Text(device.path.to_bytes()), Text(member.dir.to_bytes()));
            cx.warn(at, format!("\"{shown}\" {why}, a cache goes on without its member \"{dir}\""));
            device.refusal = Some(why.into());
        }
    }
    cx.block.member_device(device.path.clone(), at);
}
