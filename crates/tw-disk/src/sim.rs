//! The simulated twin.
use crate::{how::*, meta::*};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::os::fd::BorrowedFd;
pub(crate) enum Node {}
/// An in-memory file system.
pub enum Sim {}
macro_rules! none { ($($n:ident($($a:ty),*) -> $r:ty;)*) => { $( pub(crate) fn $n(&self, $(_: $a),*) -> $r { match *self {} } )* } }
type R<T> = Result<T, Errno>;
impl Sim {
    none! {
      open(&CStr, &Open) -> R<(Node, Meta)>; create(&CStr, Access, Existing, u32) -> R<(Node, Meta)>; create_nameless(&CStr, u32) -> R<(Node, Meta)>;
      open_now(&CStr, &Open) -> Option<R<(Node, Meta)>>; probe_now(&CStr) -> Option<R<Meta>>; read_now(&Node, u64, &mut [u8]) -> Option<R<usize>>;
      stat(&CStr, bool) -> R<Meta>; fstat_now(&Node) -> R<Meta>; list(&CStr, usize) -> R<Listing>; read(&Node, u64, &mut [u8]) -> R<usize>;
      write(&Node, Option<u64>, &[u8]) -> R<usize>; mkdir(&CStr, u32) -> R<()>; rename(&CStr, &CStr) -> R<()>; link(&CStr, &CStr) -> R<()>;
      unlink(&CStr) -> R<()>; rmdir(&CStr) -> R<()>; fsync(&Node, bool) -> R<()>; sync_dir(&CStr) -> R<()>; set_mtime(&Node, i64, u32) -> R<()>;
      set_mode(&Node, u32) -> R<()>; truncate(&Node, u64) -> R<()>; space(&CStr) -> R<Space>; readlink(&CStr) -> R<CString>; realpath(&CStr) -> R<CString>;
      sendfile(BorrowedFd<'_>, &Node, u64, usize) -> R<usize>;
    }
}
