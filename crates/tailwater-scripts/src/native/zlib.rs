//! Native functions of the module `zlib`. Results are bounded by `js_memory`, whatever a small input may become.

use std::rc::Rc;

use rquickjs::{Ctx, Exception, Object, Value};
use zlib_rs::{Deflate, DeflateConfig, DeflateFlush, Inflate, InflateError, InflateFlush, Status};

use super::bytes;
use super::function::natives;
use crate::state::State;

/// Bytes of room for output at a time.
const ROOM: usize = 16 << 10;

pub(super) fn install<'js>(ctx: &Ctx<'js>, object: &Object<'js>, state: &Rc<State>) -> rquickjs::Result<()> {
    natives! { 'js, ctx, object, state;
        deflate(data: Value<'js>, options: Object<'js>);
        inflate(data: Value<'js>, options: Object<'js>);
    }
    Ok(())
}

/// Runs `step` until the stream is at its end. `step` gets the rest of the input and room for output; it returns the status, and bytes
/// that were read and written.
fn run(
    data: &[u8],
    size_max: usize,
    mut step: impl FnMut(&[u8], &mut [u8]) -> Result<(Status, usize, usize), String>,
) -> Result<Vec<u8>, String> {
    let mut rest = data;
    let mut output = Vec::new();
    loop {
        let start = output.len();
        if start > size_max {
            return Err("the result is larger than js_memory".to_owned());
        }
        output.resize(start + ROOM, 0);
        let (status, read, written) = step(rest, output.get_mut(start..).unwrap_or_default())?;
        output.truncate(start + written);
        rest = rest.get(read..).unwrap_or_default();
        match status {
            Status::StreamEnd => return Ok(output),
            _ if read == 0 && written == 0 => return Err("unexpected end of data".to_owned()),
            _ => {}
        }
    }
}

fn compress(
    data: &[u8],
    config: DeflateConfig,
    dictionary: Option<&[u8]>,
    size_max: usize,
) -> Result<Vec<u8>, String> {
    let mut state = Deflate::new_with_config(config);
    if let Some(dictionary) = dictionary {
        state.set_dictionary(dictionary).map_err(|error| error.as_str().to_owned())?;
    }
    run(data, size_max, |rest, room| {
        let (read, written) = (state.total_in(), state.total_out());
        let status =
            state.compress(rest, room, DeflateFlush::Finish).map_err(|error| error.as_str().to_owned())?;
        Ok((status, (state.total_in() - read) as usize, (state.total_out() - written) as usize))
    })
}

fn decompress(
    data: &[u8],
    is_raw: bool,
    window_bits: u8,
    dictionary: Option<&[u8]>,
    size_max: usize,
) -> Result<Vec<u8>, String> {
    let mut state = Inflate::new(!is_raw, window_bits);
    let text = |error: InflateError| error.as_str().to_owned();
    if let (true, Some(dictionary)) = (is_raw, dictionary) {
        state.set_dictionary(dictionary).map_err(text)?;
    }
    run(data, size_max, |rest, room| {
        let (read, written) = (state.total_in(), state.total_out());
        let status = match (state.decompress(rest, room, InflateFlush::NoFlush), dictionary) {
            (Err(InflateError::NeedDict { .. }), Some(dictionary)) => {
                state.set_dictionary(dictionary).map_err(text)?;
                Status::Ok
            }
            (result, _) => result.map_err(text)?,
        };
        Ok((status, (state.total_in() - read) as usize, (state.total_out() - written) as usize))
    })
}

/// Arguments that both directions have.
struct Arguments {
    data: Vec<u8>,
    dictionary: Option<Vec<u8>>,
    is_raw: bool,
    /// Bytes of the result, at most.
    size_max: usize,
}

impl State {
    fn deflate<'js>(
        &self,
        ctx: &Ctx<'js>,
        data: Value<'js>,
        options: Object<'js>,
    ) -> rquickjs::Result<Value<'js>> {
        let Arguments { data, dictionary, is_raw, size_max } = self.zlib_arguments(ctx, &data, &options)?;
        let window_bits: i32 = options.get("windowBits")?;
        let mut config = DeflateConfig::new(options.get("level")?);
        // A raw stream with a window of 256 bytes does not exist.
        config.window_bits = if is_raw { -window_bits.max(9) } else { window_bits };
        config.mem_level = options.get("memLevel")?;
        config.strategy = options
            .get::<_, i32>("strategy")?
            .try_into()
            .map_err(|()| Exception::throw_range(ctx, "strategy is out of range"))?;
        zlib_output(ctx, compress(&data, config, dictionary.as_deref(), size_max))
    }

    fn inflate<'js>(
        &self,
        ctx: &Ctx<'js>,
        data: Value<'js>,
        options: Object<'js>,
    ) -> rquickjs::Result<Value<'js>> {
        let Arguments { data, dictionary, is_raw, size_max } = self.zlib_arguments(ctx, &data, &options)?;
        let window_bits: u8 = options.get("windowBits")?;
        zlib_output(ctx, decompress(&data, is_raw, window_bits, dictionary.as_deref(), size_max))
    }

    fn zlib_arguments<'js>(
        &self,
        ctx: &Ctx<'js>,
        data: &Value<'js>,
        options: &Object<'js>,
    ) -> rquickjs::Result<Arguments> {
        Ok(Arguments {
            data: self.bytes(ctx, data)?,
            dictionary: self.optional_bytes(ctx, &options.get("dictionary")?)?,
            is_raw: options.get("isRaw")?,
            size_max: usize::try_from(self.load.settings.memory_size).unwrap_or(usize::MAX),
        })
    }
}

fn zlib_output<'js>(ctx: &Ctx<'js>, result: Result<Vec<u8>, String>) -> rquickjs::Result<Value<'js>> {
    match result {
        Ok(output) => bytes::array(ctx, &output),
        Err(message) => Err(Exception::throw_message(ctx, &message)),
    }
}
