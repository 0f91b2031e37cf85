//! `tailwater proxy --cache DIRECTORY`: cacheable responses are kept on disk and served from there.
//!
//! Only the response itself decides how long it is valid, so a response without such fields is not cached. Stale
//! responses are served while a server fails or updates are in progress.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::cli::ProxyOptions;
use crate::commands::session;
use crate::configuration::bytes_path::path;
use crate::output::console::Fault;

/// Bytes it may hold if nothing is said.
const SIZE: &str = "10g";
/// Memory for what it knows of responses: some 700,000 of them.
const KEYS_SIZE: &str = "64m";
/// Time for which unused entries stay: over a weekend.
const INACTIVE: &str = "7d";

/// A cache in a directory, which is locked like that of any other cache.
pub(super) struct Cache {
    dir: PathBuf,
    /// The directory as the configuration has it.
    word: Vec<u8>,
    size: String,
}

impl Cache {
    /// The cache that is asked for, if one is. Makes the directory.
    pub(super) fn open(options: &ProxyOptions) -> Result<Option<Self>, Fault> {
        let Some(requested) = options.cache.as_deref() else {
            return match options.cache_size {
                Some(_) => Err(Fault::emerg("\"--cache-size\" without \"--cache\"")
                    .hint("name a directory: --cache /var/cache/app")),
                None => Ok(None),
            };
        };
        let size = String::from_utf8_lossy(options.cache_size.as_deref().unwrap_or(SIZE.as_bytes()));
        let is_size = tw_conf::units::offset(size.as_bytes()).is_some_and(|bytes| bytes > 0);
        if !is_size {
            return Err(Fault::emerg(format!("invalid size in \"--cache-size {size}\""))
                .hint("for example: --cache-size 500m, --cache-size 20g"));
        }
        let shown = String::from_utf8_lossy(requested);
        let failed = |call: &'static str| {
            let shown = &shown;
            move |error: io::Error| {
                Fault::call(call, shown, &error).hint("--cache takes a directory that can be written")
            }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(path(requested)).map_err(failed("mkdir()"))?;
        let dir = path(requested).canonicalize().map_err(failed("realpath()"))?;
        let may = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
        accessat(CWD, &dir, may, AtFlags::EACCESS).map_err(|errno| failed("access()")(errno.into()))?;
        let word = session::quoted(dir.as_os_str().as_bytes()).ok_or_else(|| {
            let message =
                format!("cannot have a cache in \"{}\": its name contains a dollar sign", dir.display());
            Fault::emerg(message).hint("use another directory, or a link to it from one without")
        })?;
        Ok(Some(Self { dir, word, size: size.into_owned() }))
    }

    /// Returns the directives for the cache directory and the log field for its status.
    pub(super) fn place(&self) -> Vec<u8> {
        let more = format!(
            " levels=1:2 keys_zone=proxied:{KEYS_SIZE} inactive={INACTIVE} max_size={} use_temp_path=off;
    # MISS (no-validity)
    map \"$upstream_cache_status $cache_why\" $kept {{
        default $upstream_cache_status;
        \"~^ \" -;
        \"~^(?<kept_status>\\S+) (?<kept_why>\\S+)$\" \"$kept_status ($kept_why)\";
    }}
",
            self.size
        );
        [b"    proxy_cache_path ", &*self.word, more.as_bytes()].concat()
    }

    /// Directives that use the cache, with this `key`.
    pub(super) fn directives(key: &str) -> String {
        format!(
            "proxy_cache proxied;
        proxy_cache_key {key};
        # One asks for all who want the same, and what is no longer valid is better than nothing.
        proxy_cache_lock on;
        proxy_cache_use_stale error timeout updating http_500 http_502 http_503 http_504;
        proxy_cache_background_update on;
        proxy_cache_revalidate on;
        # What was answered to somebody by name is for nobody else.
        proxy_cache_bypass $http_authorization;
        proxy_no_cache $http_authorization;
        proxy_hide_header X-Cache-Status;
        add_header X-Cache-Status $upstream_cache_status always;"
        )
    }

    /// Line of the output for the user.
    pub(super) fn greeting(&self) -> String {
        format!("Keeping what may be kept in {}, {} at most\n", self.dir.display(), self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_options_are_refused() {
        let refused = |cache: Option<&str>, size: Option<&str>| {
            let bytes = |text: &str| text.as_bytes().to_vec();
            let options = ProxyOptions {
                cache: cache.map(bytes),
                cache_size: size.map(bytes),
                ..ProxyOptions::default()
            };
            Cache::open(&options).err().map(|fault| fault.message)
        };
        assert_eq!(refused(None, None), None);
        for (cache, size, expected) in [
            (None, Some("1g"), "\"--cache-size\" without \"--cache\""),
            (Some("/x"), Some("much"), "invalid size in \"--cache-size much\""),
            (Some("/x"), Some("0"), "invalid size in \"--cache-size 0\""),
            (Some("/x"), Some("1g;"), "invalid size in \"--cache-size 1g;\""),
            (Some("/dev/null"), None, "mkdir() \"/dev/null\" failed (17: File exists)"),
            (Some("/dev/null/a"), None, "mkdir() \"/dev/null/a\" failed (20: Not a directory)"),
        ] {
            assert_eq!(refused(cache, size).as_deref(), Some(expected), "{cache:?} {size:?}");
        }
    }
}
