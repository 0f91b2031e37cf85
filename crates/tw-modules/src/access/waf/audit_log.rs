//! Audit log: one file with all records, or a file for each record and a line about it in an index (`SecAuditLogType Concurrent`).
//!
//! Threads of logs write both, and create the directories. A record that finds the ring of its log full is counted there.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use tw_conf::ConfError;
use tw_core::log::{DIRECTORY_OPENER, SinkRef};
use tw_core::reach::Reach;
use tw_log::{Links, NamedFiles, Target};
use tw_request::protocol::Resolve;
use tw_request::vars::Template;
use tw_waf::{AuditLogType, RecordTime, RuleSet, Transaction};

use super::rule_files::RawRules;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Bytes of the identifier of a request in the name of a file of the audit log.
    const NAME_MAX: usize = 128, bytes, "the rest is left out";
}

/// Audit log of a set of rules.
pub(super) struct AuditLog {
    /// File with the records, or with the lines about them.
    file: Option<SinkRef>,
    /// Files with one record each.
    records: Option<RecordFiles>,
}

/// Directory of files with one record each.
struct RecordFiles {
    directory: Vec<u8>,
    sink: SinkRef,
}

impl AuditLog {
    /// Audit log of `rules`; `None` if they write none.
    pub(super) fn resolve(
        rules: &RuleSet,
        raw: &[RawRules],
        cx: &mut Resolve<'_>,
    ) -> Result<Option<Self>, ConfError> {
        let settings = rules.settings();
        let file = settings.audit_log.as_ref().map(|name| {
            let path: PathBuf = OsString::from_vec(cx.full_path(name.as_bytes())).into();
            cx.sink(&path)
        });
        if settings.audit_log_type == AuditLogType::Serial {
            return Ok(file.map(|file| Self { file: Some(file), records: None }));
        }
        let Some(name) = &settings.audit_log_directory else {
            let error = ConfError::new("\"SecAuditLogType Concurrent\" needs \"SecAuditLogStorageDir\"");
            return Err(match raw.last() {
                Some(last) => error.at(last.word().span),
                None => error,
            });
        };
        let mut directory = cx.full_path(name.as_bytes());
        while directory.len() > 1 && directory.ends_with(b"/") {
            directory.pop();
        }
        let target = Target::Files(NamedFiles {
            name: String::from_utf8_lossy(&[&*directory, b"/*"].concat()).into_owned(),
            cache: None,
            opener: DIRECTORY_OPENER,
        });
        let sink = cx.sink_of(&target);
        Ok(Some(Self { file, records: Some(RecordFiles { directory, sink }) }))
    }

    /// Declares what the threads of the logs change.
    pub(super) fn declare(&self, reach: &mut Reach) {
        if let Some(records) = &self.records {
            let directory: Template = Template::text(&records.directory);
            reach.changes(&directory, None);
        }
    }

    /// Writes the record of a request.
    pub(super) fn write(&self, transaction: &Transaction, time: RecordTime<'_>) {
        let record = transaction.audit_record(time);
        let Some(RecordFiles { directory, sink }) = &self.records else {
            if let Some(sink) = self.file.as_ref().and_then(|file| file.sink()) {
                // The sink counts records for which it has no room.
                let _ = sink.push(&record);
            }
            return;
        };
        let path = [&**directory, &file_name(time.iso8601, transaction.unique_id())].concat();
        if let Some(sink) = sink.sink() {
            // The sink counts records for which it has no room.
            let _ = sink.push_to(&path, b"/", Links::Follow, &record);
        }
        if let Some(sink) = self.file.as_ref().and_then(|file| file.sink()) {
            let line = transaction.audit_index_line(time, &String::from_utf8_lossy(&path), &record);
            // The sink counts records for which it has no room.
            let _ = sink.push(&line);
        }
    }
}

/// `/20261129/20261129-1715/20261129-171537-ID`, as ModSecurity names it.
fn file_name(iso8601: &str, id: &[u8]) -> Vec<u8> {
    let digits: String = iso8601.chars().take(19).filter(char::is_ascii_digit).collect();
    let (day, time) = digits.split_at_checked(8).unwrap_or((&digits, ""));
    let minute = time.get(..4).unwrap_or(time);
    // An identifier may have text of the client in it, which must not lead elsewhere.
    let plain = |byte: u8| if byte.is_ascii_alphanumeric() || b"._-@".contains(&byte) { byte } else { b'_' };
    let id = id.iter().take(NAME_MAX).map(|byte| plain(*byte));
    format!("/{day}/{day}-{minute}/{day}-{time}-").into_bytes().into_iter().chain(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_records_have_the_time_and_the_identifier() {
        for (id, expected) in [
            ("a1", "/20261129/20261129-1715/20261129-171537-a1"),
            ("../../x\0", "/20261129/20261129-1715/20261129-171537-.._.._x_"),
        ] {
            let name = file_name("2026-11-29T17:15:37+00:00", id.as_bytes());
            assert_eq!(String::from_utf8_lossy(&name), expected);
        }
        assert_eq!(file_name("2026-11-29T17:15:37+00:00", &[b'a'; 500]).len(), 40 + NAME_MAX);
    }
}
