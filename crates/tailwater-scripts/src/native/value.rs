//! Answers of the host as values of JavaScript, and commands of `fs` from objects.

use rquickjs::{Ctx, Exception, IntoJs, Object, Value};
use tw_script::{
    ByteBuf, DictionaryValue, FetchResponse, FileCommand, FileKind, FileStatus, FileValue, Reply, Token,
};

use super::bytes;
use crate::state::State;

pub(super) fn undefined<'js>(ctx: &Ctx<'js>) -> rquickjs::Result<Value<'js>> {
    rquickjs::Undefined.into_js(ctx)
}

pub(super) fn number<'js>(ctx: &Ctx<'js>, number: f64) -> rquickjs::Result<Value<'js>> {
    number.into_js(ctx)
}

/// Pairs of names and values.
fn pairs<'js, T: IntoJs<'js>>(
    ctx: &Ctx<'js>,
    pairs: impl Iterator<Item = (String, T)>,
) -> rquickjs::Result<Value<'js>> {
    let pair = |(name, value): (String, T)| vec![name.into_js(ctx)?, value.into_js(ctx)?].into_js(ctx);
    pairs.map(pair).collect::<rquickjs::Result<Vec<_>>>()?.into_js(ctx)
}

/// Result of a command of a dictionary.
pub(super) fn dictionary<'js>(ctx: &Ctx<'js>, value: DictionaryValue) -> rquickjs::Result<Value<'js>> {
    let text = |bytes: &ByteBuf| bytes::text(bytes).into_owned();
    match value {
        DictionaryValue::None => undefined(ctx),
        DictionaryValue::String(value) => text(&value).into_js(ctx),
        DictionaryValue::Number(value) => value.into_js(ctx),
        DictionaryValue::Bool(value) => value.into_js(ctx),
        DictionaryValue::Keys(keys) => keys.iter().map(text).collect::<Vec<_>>().into_js(ctx),
        DictionaryValue::Strings(items) => {
            pairs(ctx, items.iter().map(|(key, value)| (text(key), text(value))))
        }
        DictionaryValue::Numbers(items) => pairs(ctx, items.iter().map(|(key, value)| (text(key), *value))),
    }
}

/// Result of a command of `fs`.
pub(super) fn file<'js>(ctx: &Ctx<'js>, value: FileValue) -> rquickjs::Result<Value<'js>> {
    match value {
        FileValue::None => undefined(ctx),
        FileValue::Bytes(bytes) => bytes::array(ctx, &bytes),
        FileValue::Number(number) => (number as f64).into_js(ctx),
        FileValue::Status(status) => file_status(ctx, &status)?.into_js(ctx),
        FileValue::Entries(entries) => {
            let entry = |entry: &tw_script::FileEntry| {
                vec![bytes::array(ctx, &entry.name)?, kind(entry.kind).into_js(ctx)?].into_js(ctx)
            };
            entries.iter().map(entry).collect::<rquickjs::Result<Vec<_>>>()?.into_js(ctx)
        }
    }
}

/// Name of a kind in `fs.js`.
const fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "File",
        FileKind::Directory => "Directory",
        FileKind::Symlink => "SymbolicLink",
        FileKind::BlockDevice => "BlockDevice",
        FileKind::CharacterDevice => "CharacterDevice",
        FileKind::Fifo => "FIFO",
        FileKind::Socket => "Socket",
    }
}

fn file_status<'js>(ctx: &Ctx<'js>, status: &FileStatus) -> rquickjs::Result<Object<'js>> {
    let object = Object::new(ctx.clone())?;
    object.set("kind", kind(status.kind))?;
    for (name, value) in [
        ("dev", status.dev as f64),
        ("ino", status.ino as f64),
        ("mode", f64::from(status.mode)),
        ("nlink", status.nlink as f64),
        ("uid", f64::from(status.uid)),
        ("gid", f64::from(status.gid)),
        ("rdev", status.rdev as f64),
        ("size", status.size as f64),
        ("blksize", status.blksize as f64),
        ("blocks", status.blocks as f64),
        ("atimeMs", status.atime_ms),
        ("mtimeMs", status.mtime_ms),
        ("ctimeMs", status.ctime_ms),
        ("birthtimeMs", status.birthtime_ms),
    ] {
        object.set(name, value)?;
    }
    Ok(object)
}

fn fetched<'js>(ctx: &Ctx<'js>, response: &FetchResponse) -> rquickjs::Result<Value<'js>> {
    let text = |bytes: &ByteBuf| bytes::text(bytes).into_owned();
    let object = Object::new(ctx.clone())?;
    object.set("status", response.status)?;
    object.set("reason", text(&response.reason))?;
    let fields = response.fields.iter().map(|field| (text(&field.name), text(&field.value)));
    object.set("fields", pairs(ctx, fields)?)?;
    object.set("body", bytes::array(ctx, &response.body)?)?;
    object.into_js(ctx)
}

impl State {
    /// Value that settles the promise of an operation.
    pub(crate) fn reply_value<'js>(
        &self,
        ctx: &Ctx<'js>,
        token: Token,
        reply: Reply,
    ) -> rquickjs::Result<Value<'js>> {
        match reply {
            Reply::Done | Reply::Names(_) | Reply::ResponseHead(_) | Reply::Function { .. } => undefined(ctx),
            Reply::Value(value) => bytes::optional_array(ctx, value.as_deref().map(Vec::as_slice)),
            Reply::Subresponse(mut subresponse) => {
                let body = subresponse.body.take();
                self.subresponses.borrow_mut().insert(token, *subresponse);
                bytes::optional_array(ctx, body.as_deref().map(Vec::as_slice))
            }
            Reply::Fetched(response) => fetched(ctx, &response),
            Reply::Dictionary(value) => dictionary(ctx, value),
            Reply::File(value) => file(ctx, value),
        }
    }

    /// The command of `fs` that an object of `fs.js` describes.
    pub(super) fn file_command<'js>(
        &self,
        ctx: &Ctx<'js>,
        object: &Object<'js>,
    ) -> rquickjs::Result<FileCommand> {
        let path = |name: &str| self.bytes(ctx, &object.get(name)?).map(ByteBuf::from);
        let number = |name: &str| object.get::<_, f64>(name).map(|number| number as u32);
        let position =
            || object.get::<_, Option<f64>>("position").map(|place| place.map(|place| place as u64));
        let flag = || object.get::<_, String>("flag");
        let is = |name: &str| object.get::<_, bool>(name);
        Ok(match object.get::<_, String>("command")?.as_str() {
            "access" => FileCommand::Access { path: path("path")?, mode: number("mode")? },
            "read" => FileCommand::Read { path: path("path")?, flag: flag()? },
            "write" => FileCommand::Write {
                path: path("path")?,
                data: path("data")?,
                mode: number("mode")?,
                flag: flag()?,
            },
            "status" => FileCommand::Status { path: path("path")?, follows_links: is("followsLinks")? },
            "mkdir" => FileCommand::CreateDirectory {
                path: path("path")?,
                mode: number("mode")?,
                is_recursive: is("isRecursive")?,
            },
            "rmdir" => FileCommand::RemoveDirectory { path: path("path")?, is_recursive: is("isRecursive")? },
            "readdir" => FileCommand::ReadDirectory { path: path("path")? },
            "realpath" => FileCommand::RealPath { path: path("path")? },
            "readlink" => FileCommand::ReadLink { path: path("path")? },
            "rename" => FileCommand::Rename { from: path("path")?, to: path("to")? },
            "symlink" => FileCommand::Symlink { target: path("target")?, path: path("path")? },
            "unlink" => FileCommand::Remove { path: path("path")? },
            "open" => FileCommand::Open { path: path("path")?, flag: flag()?, mode: number("mode")? },
            "close" => FileCommand::Close { descriptor: number("descriptor")? },
            "fstat" => FileCommand::StatusOf { descriptor: number("descriptor")? },
            "readAt" => FileCommand::ReadAt {
                descriptor: number("descriptor")?,
                size: number("size")?,
                position: position()?,
            },
            "writeAt" => FileCommand::WriteAt {
                descriptor: number("descriptor")?,
                data: path("data")?,
                position: position()?,
            },
            _ => return Err(Exception::throw_type(ctx, "unknown command of fs")),
        })
    }
}
