//! Choice of the files that the kernel sends to the client of a request (`sendfile on`).

use tw_disk::{Disk, LOCK_FILE_MIN, Sending};

use super::open_file::OpenFile;
use crate::request::Request;

/// Returns true if the kernel sends locked files of the location of `r`, which it cannot do over TLS.
fn is_wanted(r: &Request) -> bool {
    r.generation().process.lock_max > 0 && r.plan().core.files.sendfile && r.client().tls.get().is_none()
}

impl OpenFile {
    /// Returns true if the kernel may send the file for `r`; the choice is made when its contents are sent.
    pub fn is_for_kernel(&self, r: &Request) -> bool {
        self.meta().size >= LOCK_FILE_MIN && is_wanted(r)
    }

    /// Notes that it is being sent to the client of `r`, and has it locked if that was often enough.
    pub fn count_use(&self, disk: &Disk, r: &Request) {
        if self.is_for_kernel(r) {
            self.note_use(disk, &r.generation().process.locks);
        }
    }
}

/// A file for being sent to the client of `r` by the kernel; `None` if it has to be copied.
pub fn sending<'a>(r: &Request, disk: &Disk, file: &'a OpenFile) -> Option<Sending<'a>> {
    if is_wanted(r) { file.sending(disk) } else { None }
}
