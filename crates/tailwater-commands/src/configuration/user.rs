//! User and group of the server: `user`, looked up in `/etc/passwd` and `/etc/group`.
//!
//! Only these two files are read. Users of a directory service are not found; name a local one, or start the server as
//! the right user in the first place.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{Gid, Uid, getegid, geteuid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use serde::{Deserialize, Serialize};

use crate::output::console::Fault;

/// Numbers of `nobody`, for a system without the files.
const NOBODY: u32 = 65534;
/// Names of the group of `nobody`; systems differ.
const NOBODY_GROUPS: [&str; 2] = ["nobody", "nogroup"];

/// A user and its groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Number of the user.
    pub uid: u32,
    /// Number of its group.
    pub gid: u32,
    /// Further groups the user is a member of.
    pub groups: Vec<u32>,
}

/// The two files.
// DIFF(nginx): nothing but these files is asked; nginx asks the name service, which may wait for a network.
struct Accounts {
    passwd: String,
    group: String,
}

impl Identity {
    /// Looks up `user name [group]`; without a group, the group of the same name. Reads files.
    pub fn of(name: &str, group: Option<&str>) -> Result<Self, Fault> {
        Accounts::read().identity(name, group)
    }

    /// Default user of the server.
    pub fn nobody() -> Self {
        let accounts = Accounts::read();
        let find_known = |group| accounts.identity("nobody", Some(group)).ok();
        NOBODY_GROUPS.into_iter().find_map(find_known).unwrap_or(Self {
            uid: NOBODY,
            gid: NOBODY,
            groups: Vec::new(),
        })
    }

    /// Becomes this user for good. The calling thread must be the only one: others would keep what they are.
    pub fn assume(&self) -> Result<(), Fault> {
        let failed = |call: String| {
            move |error: Errno| {
                let why = match error {
                    Errno::PERM => ", changing the user takes the capabilities SETUID and SETGID",
                    _ => "",
                };
                Fault::emerg(format!("{call} failed ({}){why}", tw_base::Errno::from(error)))
                    .hint("without them start the server as its user, or say \"user root\"")
            }
        };
        let groups: Vec<Gid> = self.groups.iter().map(|group| Gid::from_raw(*group)).collect();
        let is_already = (geteuid().as_raw(), getegid().as_raw()) == (self.uid, self.gid);
        match set_thread_groups(&groups) {
            // A process that is this user already, in a container without the capability, loses nothing by keeping its
            // groups.
            Err(Errno::PERM) if is_already => {}
            set => set.map_err(failed("setgroups()".into()))?,
        }
        set_thread_gid(Gid::from_raw(self.gid)).map_err(failed(format!("setgid({})", self.gid)))?;
        set_thread_uid(Uid::from_raw(self.uid)).map_err(failed(format!("setuid({})", self.uid)))
    }
}

impl Accounts {
    fn read() -> Self {
        let read =
            |path| -> io::Result<String> { Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned()) };
        // A file that cannot be read has no users.
        Self {
            passwd: read("/etc/passwd").unwrap_or_default(),
            group: read("/etc/group").unwrap_or_default(),
        }
    }

    fn identity(&self, name: &str, group: Option<&str>) -> Result<Identity, Fault> {
        let uid = number(&self.passwd, name).ok_or_else(|| {
            Fault::emerg(format!("getpwnam(\"{name}\") failed"))
                .hint("no such user in /etc/passwd; users of a directory service are not looked up")
        })?;
        let named = group.unwrap_or(name);
        let gid = number(&self.group, named).ok_or_else(|| {
            let fault = Fault::emerg(format!("getgrnam(\"{named}\") failed"));
            match group {
                Some(_) => fault.hint("no such group in /etc/group"),
                None => fault.hint(format!(
                    "no group is called like the user; name the group as well: user {name} GROUP;"
                )),
            }
        })?;
        let member = |line: &&str| {
            line.split(':').nth(3).is_some_and(|members| members.split(',').any(|member| member == name))
        };
        let further =
            self.group.lines().filter(member).filter_map(|line| line.split(':').nth(2)?.parse().ok());
        Ok(Identity { uid, gid, groups: std::iter::once(gid).chain(further.filter(|g| *g != gid)).collect() })
    }
}

/// The third field of the line that begins with `name`.
fn number(file: &str, name: &str) -> Option<u32> {
    let mut fields = file
        .lines()
        .map(|line| line.split(':'))
        .find_map(|mut fields| (!name.is_empty() && fields.next() == Some(name)).then_some(fields))?;
    fields.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nwww:x:33:33::/var/www:/bin/false\nodd:x:y:1::/:\n";
    const GROUP: &str = "root:x:0:\nwww:x:34:\nadm:x:4:syslog,www\nssl:x:110:www\nown:x:34:www\nshort\n";

    #[test]
    fn users_and_groups() {
        let accounts = Accounts { passwd: PASSWD.into(), group: GROUP.into() };
        let is = |uid, gid, groups: &[u32]| Ok(Identity { uid, gid, groups: groups.to_vec() });
        let fails = |what: &str| Err(format!("{what} failed"));
        for (name, group, expected) in [
            ("www", None, is(33, 34, &[34, 4, 110])),
            ("www", Some("adm"), is(33, 4, &[4, 110, 34])),
            ("root", None, is(0, 0, &[0])),
            ("nobody", None, fails("getpwnam(\"nobody\")")),
            ("odd", None, fails("getpwnam(\"odd\")")),
            ("", None, fails("getpwnam(\"\")")),
            ("www", Some("none"), fails("getgrnam(\"none\")")),
            ("www", Some("short"), fails("getgrnam(\"short\")")),
        ] {
            let identity = accounts.identity(name, group).map_err(|fault| fault.message);
            assert_eq!(identity, expected, "{name} {group:?}");
        }
    }
}
