//! Settings for opening and reading the files of a location.

use std::marker::PhantomData;
use std::time::Duration;

use tw_conf::{Args, Buffers, ConfError, Directive, Node, Setting, Word, record};

use super::aio::PoolRef;
use super::contexts::{ALL, ALL_IF};
use crate::protocol::Resolve;
use crate::vars::Template;

/// Settings for opening and reading files.
#[derive(Clone)]
pub struct FileSettings {
    /// `aio`
    pub aio: PoolRef,
    /// `sendfile`
    pub sendfile: bool,
    /// `sendfile_max_chunk`, bytes; 0 means no limit.
    pub sendfile_max_chunk: u64,
    /// `directio`: files of at least this size are read past the page cache.
    pub directio: Option<u64>,
    /// `directio_alignment`, bytes.
    pub directio_alignment: u64,
    /// `read_ahead`, bytes; 0 leaves it to the kernel.
    pub read_ahead: u64,
    /// `output_buffers`
    pub output_buffers: Buffers,
    /// `open_file_cache`
    pub open_file_cache: Option<OpenFileCache>,
    companions: Companions,
    /// `disable_symlinks`
    pub symlinks: Symlinks,
}

/// `open_file_cache` and its companions.
#[derive(Debug, Clone, Copy)]
pub struct OpenFileCache {
    /// `max`: files and failures that are kept.
    pub max: usize,
    /// `inactive`: an entry not used for so long is dropped.
    pub inactive: Duration,
    /// `open_file_cache_valid`: an entry is checked again after so long.
    pub valid: Duration,
    /// `open_file_cache_min_uses`: a descriptor stays open after so many uses within `inactive`.
    pub min_uses: u64,
    /// `open_file_cache_errors`: failures are kept too.
    pub errors: bool,
}

/// The companions of `open_file_cache` by themselves: they are inherited where there is no cache, too.
#[derive(Debug, Clone, Copy)]
struct Companions {
    valid: Duration,
    min_uses: u64,
    errors: bool,
}

/// `disable_symlinks`
#[derive(Clone)]
pub enum Symlinks {
    /// Symbolic links are followed.
    Follow,
    /// A link on the way is refused.
    Refuse(Option<Template>),
    /// Links whose owner is not the owner of their target are refused.
    SameOwner(Option<Template>),
}

/// Settings for opening and reading files as written.
#[derive(Default)]
pub(super) struct Raw {
    aio: Setting<Word>,
    aio_write: Setting<bool>,
    sendfile: Setting<bool>,
    sendfile_max_chunk: Setting<u64>,
    directio: Setting<Option<u64>>,
    directio_alignment: Setting<u64>,
    read_ahead: Setting<u64>,
    output_buffers: Setting<Buffers>,
    open_file_cache: Setting<Option<(usize, Duration)>>,
    open_file_cache_valid: Setting<Duration>,
    open_file_cache_min_uses: Setting<u64>,
    open_file_cache_errors: Setting<bool>,
    disable_symlinks: Setting<RawSymlinks>,
}

/// Records of the directives, for the settings as written `R` of a location.
pub(super) struct Records<R>(PhantomData<R>);

impl<R: AsMut<Raw> + 'static> Records<R> {
    pub(super) const ALL: &'static [Directive<R>] = &[
        record::new("aio", "on | off | threads[=pool]", ALL, Args::exact(1))
            .default("threads")
            .since("0.8.11")
            .doc(
                "Place where file operations wait for a disk: a thread pool (its name may contain variables), io_uring (on), or the event loop (off).",
            )
            .set(|raw, node, _| {
                let word = node.arg(0)?.clone();
                raw.as_mut().aio.set_once(node, word)
            }),
        record::flag("aio_write", ALL)
            .default("off")
            .since("1.9.13")
            .doc("Accepted; temporary files are always written by the thread pool.")
            .set(|raw, node, _| raw.as_mut().aio_write.set_flag(node)),
        record::flag("sendfile", ALL_IF)
            .default("off")
            .doc(
                "Has the kernel send files without copying them: event loops those that are locked in memory (hot_lock_size), pool \
                 threads large pieces that are not in memory. What is in memory and not locked is copied.",
            )
            .set(|raw, node, _| raw.as_mut().sendfile.set_flag(node)),
        record::size("sendfile_max_chunk", ALL)
            .default("2m")
            .doc("Most bytes one turn of the loop, or one sendfile() call, gives to a connection.")
            .set(|raw, node, _| raw.as_mut().sendfile_max_chunk.set_size(node)),
        record::new("directio", "size | off", ALL, Args::exact(1))
            .default("off")
            .since("0.7.7")
            .doc("Reads files of at least this size with O_DIRECT.")
            .set(|raw, node, _| {
                raw.as_mut().directio.set_with(node, |node| {
                    if node.arg(0)?.is("off") { Ok(None) } else { node.offset().map(Some) }
                })
            }),
        record::size("directio_alignment", ALL)
            .default("512")
            .since("0.8.11")
            .doc("Alignment of O_DIRECT reads.")
            .set(|raw, node, _| raw.as_mut().directio_alignment.set_offset(node)),
        record::size("read_ahead", ALL)
            .default("0")
            .doc("Read-ahead asked of the kernel for files that are read piece by piece.")
            .set(|raw, node, _| raw.as_mut().read_ahead.set_size(node)),
        record::new("output_buffers", "number size", ALL, Args::exact(2))
            .default("2 32k")
            .doc("Number and size of the buffers of one file that is read from disk.")
            .set(|raw, node, _| raw.as_mut().output_buffers.set_buffers(node)),
        record::new("open_file_cache", "off | max=N [inactive=time]", ALL, Args::range(1, 2))
            .default("off")
            .doc(
                "Keeps descriptors and what is known of files between requests, without checking them each time.",
            )
            .set(|raw, node, _| raw.as_mut().open_file_cache.set_with(node, read_open_file_cache)),
        record::time("open_file_cache_valid", ALL)
            .default("60s")
            .doc("Time after which an entry of open_file_cache is checked against the file.")
            .set(|raw, node, _| raw.as_mut().open_file_cache_valid.set_sec(node)),
        record::number("open_file_cache_min_uses", ALL)
            .default("1")
            .doc("Uses within inactive after which a descriptor stays open.")
            .set(|raw, node, _| raw.as_mut().open_file_cache_min_uses.set_number(node)),
        record::flag("open_file_cache_errors", ALL)
            .default("off")
            .doc("Also remembers that a file could not be opened.")
            .set(|raw, node, _| raw.as_mut().open_file_cache_errors.set_flag(node)),
        record::new("disable_symlinks", "off | on | if_not_owner [from=part]", ALL, Args::range(1, 2))
            .default("off")
            .since("1.1.15")
            .doc("Refuses symbolic links in the path of a file.")
            .set(|raw, node, _| raw.as_mut().disable_symlinks.set_with(node, read_symlinks)),
    ];
}

enum RawSymlinks {
    Off,
    On { same_owner: bool, from: Option<Word> },
}

impl FileSettings {
    pub(super) fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let aio = match raw.aio.take() {
            Some(word) => PoolRef::parse(&word, cx)?,
            // DIFF(nginx): file operations use the default thread pool unless `aio off` says otherwise.
            None => outer.map_or(PoolRef::DEFAULT, |o| o.aio.clone()),
        };
        let old = outer.map(|o| o.companions);
        let companions = Companions {
            valid: raw.open_file_cache_valid.or(old.map(|c| c.valid), Duration::from_secs(60)),
            min_uses: raw.open_file_cache_min_uses.or(old.map(|c| c.min_uses), 1),
            errors: raw.open_file_cache_errors.or(old.map(|c| c.errors), false),
        };
        let outer_cache = outer.map(|o| o.open_file_cache.map(|cache| (cache.max, cache.inactive)));
        let open_file_cache = raw.open_file_cache.or(outer_cache, None).map(|(max, inactive)| {
            let Companions { valid, min_uses, errors } = companions;
            OpenFileCache { max, inactive, valid, min_uses, errors }
        });
        let symlinks = match raw.disable_symlinks.take() {
            Some(RawSymlinks::Off) => Symlinks::Follow,
            Some(RawSymlinks::On { same_owner, from }) => {
                let from = from.map(|word| cx.template(&word)).transpose()?;
                if same_owner { Symlinks::SameOwner(from) } else { Symlinks::Refuse(from) }
            }
            None => outer.map_or(Symlinks::Follow, |o| o.symlinks.clone()),
        };
        Ok(Self {
            aio,
            sendfile: raw.sendfile.or(outer.map(|o| o.sendfile), false),
            sendfile_max_chunk: raw.sendfile_max_chunk.or(outer.map(|o| o.sendfile_max_chunk), 2 << 20),
            directio: raw.directio.or(outer.map(|o| o.directio), None),
            directio_alignment: raw.directio_alignment.or(outer.map(|o| o.directio_alignment), 512),
            read_ahead: raw.read_ahead.or(outer.map(|o| o.read_ahead), 0),
            output_buffers: raw
                .output_buffers
                .or(outer.map(|o| o.output_buffers), Buffers { count: 2, size: 32 << 10 }),
            open_file_cache,
            companions,
            symlinks,
        })
    }
}

fn read_open_file_cache(node: &Node) -> Result<Option<(usize, Duration)>, ConfError> {
    let mut max = None;
    let mut inactive = Duration::from_secs(60);
    for word in &node.args {
        if word.is("off") {
            return Ok(None);
        }
        let bad = || node.fail(format!("invalid \"open_file_cache\" parameter \"{word}\""));
        if let Some(value) = word.param("max") {
            max = Some(tw_conf::units::number(value).filter(|n| *n > 0).ok_or_else(bad)?);
        } else if let Some(value) = word.param("inactive") {
            inactive = tw_conf::units::sec(value).ok_or_else(bad)?;
        } else {
            return Err(bad());
        }
    }
    let max = max.ok_or_else(|| node.fail("\"open_file_cache\" must have the \"max\" parameter"))?;
    Ok(Some((usize::try_from(max).unwrap_or(usize::MAX), inactive)))
}

fn read_symlinks(node: &Node) -> Result<RawSymlinks, ConfError> {
    let mut kind = None;
    let mut from = None;
    for word in &node.args {
        match word.param("from") {
            Some(b"") | None if word.bytes.starts_with(b"from=") => return Err(node.invalid_parameter(word)),
            Some(value) => from = Some(Word { bytes: value.into(), ..word.clone() }),
            None if word.is("off") => kind = Some(None),
            None if word.is("on") => kind = Some(Some(false)),
            None if word.is("if_not_owner") => kind = Some(Some(true)),
            None => return Err(node.invalid_parameter(word)),
        }
    }
    match (kind, from) {
        (Some(Some(same_owner)), from) => Ok(RawSymlinks::On { same_owner, from }),
        (Some(None), None) => Ok(RawSymlinks::Off),
        (Some(None), Some(_)) => Err(node.fail("\"from=\" cannot be used with \"off\" parameter")),
        (None, _) => {
            Err(node.fail("\"disable_symlinks\" must have \"off\", \"on\" or \"if_not_owner\" parameter"))
        }
    }
}
