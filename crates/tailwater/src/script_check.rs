//! Scripts of a configuration are compiled by the program that will run them, before anything serves by the configuration.
//!
//! ```text
//! sources ─► file in memory ─► standard input of `tailwater-scripts check` ─► one answer for each list of modules
//! ```

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use tailwater_commands::output::console::Fault;
use tw_app::Config;
use tw_js::{SCRIPT_USE, ScriptUse};
use tw_script::{FrameReader, HostMessage, Load, LoadError, ProcessMessage};

/// Longest time for compiling all scripts.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Largest answer.
const ANSWER_MAX: usize = 1 << 20;
/// Bytes of a line that a message shows.
const SHOWN_MAX: usize = 160;

/// Compiles the scripts of a configuration, if it has some. Waits for the program.
///
/// # Errors
/// There is no program, or a script has a mistake.
pub(crate) fn check(config: &Config) -> Result<(), Fault> {
    let Some(scripts) =
        config.shared_objects.find::<ScriptUse>(SCRIPT_USE).filter(|scripts| scripts.is_used())
    else {
        return Ok(());
    };
    if !config.main.master_process {
        return Err(Fault::emerg("scripts need \"master_process on\"")
            .hint("the master process starts the processes that run them"));
    }
    let program = scripts.program();
    let loads = scripts.loads();
    let answers = ask(&program, &loads).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            Fault::emerg(format!("\"js_import\" needs the program \"{}\"", program.display()))
                .hint("packages install it beside tailwater; from source: cargo build -p tailwater-scripts")
        }
        _ => Fault::call("execve()", &program.display().to_string(), &error),
    })?;
    if answers.len() < loads.len() {
        return Err(Fault::emerg(format!("\"{}\" has not compiled all scripts", program.display())));
    }
    answers.into_iter().zip(&loads).try_for_each(|(answer, load)| answer.map_err(|error| fault(&error, load)))
}

/// Answers of the program to these lists.
fn ask(program: &Path, loads: &[Load]) -> io::Result<Vec<Result<(), LoadError>>> {
    let mut input = Vec::new();
    for load in loads {
        tw_script::encode(&HostMessage::Load(Box::new(load.clone())), &mut input)
            .map_err(io::Error::other)?;
    }
    let file = memfd_create("scripts", MemfdFlags::CLOEXEC)?;
    write_all(&file, &input)?;
    seek(&file, SeekFrom::Start(0))?;
    let mut command = Command::new(program);
    command.arg("check").env_clear().stdin(Stdio::from(file)).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let read = read_answers(&mut child);
    // The program has ended, or is ended here.
    let _ = child.kill();
    let _ = child.wait();
    read
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written_len = rustix::io::write(file, bytes)?;
        bytes = bytes.get(written_len..).unwrap_or_default();
    }
    Ok(())
}

fn read_answers(child: &mut Child) -> io::Result<Vec<Result<(), LoadError>>> {
    let Some(mut output) = child.stdout.take().map(|output| File::from(OwnedFd::from(output))) else {
        return Ok(Vec::new());
    };
    let until = Instant::now() + TIMEOUT;
    let mut reader = FrameReader::default();
    let mut size = 0;
    let mut buffer = [0; 4096];
    let mut answers = Vec::new();
    loop {
        let remaining = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(remaining).map_err(io::Error::other)?;
        let is_ready =
            poll(&mut [PollFd::from_borrowed_fd(output.as_fd(), PollFlags::IN)], Some(&timeout))? > 0;
        if !is_ready {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let count = output.read(&mut buffer)?;
        size += count;
        if count == 0 || size > ANSWER_MAX {
            return Ok(answers);
        }
        reader.push(buffer.get(..count).unwrap_or_default());
        while let Some(message) = reader.next_message().map_err(io::Error::other)? {
            if let ProcessMessage::Loaded { result, .. } = message {
                answers.push(result);
            }
        }
    }
}

/// The mistake of a script, with its line and a mark below its column.
fn fault(error: &LoadError, load: &Load) -> Fault {
    match error {
        LoadError::MissingImport { referrer, specifier } => {
            Fault::emerg(format!("module \"{specifier}\" is not found in {referrer}"))
        }
        LoadError::Exception { file, message, .. } if file.is_empty() => Fault::emerg(message.clone()),
        LoadError::Exception { file, line, column, message } => {
            let fault = Fault::emerg(format!("{message} in {file}:{line}"));
            let text = load.sources.iter().find(|source| source.path == *file).map(|source| &source.text[..]);
            let at = usize::try_from(*line).ok().and_then(|line| line.checked_sub(1));
            match text.zip(at).and_then(|(text, at)| text.split(|byte| *byte == b'\n').nth(at)) {
                Some(line) => fault.hint(shown(line, *column)),
                None => fault,
            }
        }
    }
}

/// A line of a source with a caret below its column, from 1.
fn shown(line: &[u8], column: u32) -> String {
    let text: String = String::from_utf8_lossy(line).chars().take(SHOWN_MAX).collect();
    let text = text.replace(char::is_control, " ");
    let before = usize::try_from(column).unwrap_or(0).saturating_sub(1);
    match column {
        0 => text,
        _ if before > text.chars().count() => text,
        _ => format!("{text}\n      {}^", " ".repeat(before)),
    }
}

#[cfg(test)]
mod tests {
    use tw_script::{ByteBuf, Environment, Settings, Source};

    use super::*;

    #[test]
    fn mistake_is_shown_with_its_line() {
        let load = Load {
            script: 1,
            modules: Vec::new(),
            sources: vec![Source { path: "a.js".to_owned(), text: ByteBuf::from("let a;\nlet\tb = (;\n") }],
            imports: Vec::new(),
            settings: Settings { timeout_ms: 1, memory_size: 1, context_reuse_count: 0 },
            environment: Environment::default(),
        };
        let error = |line, column| LoadError::Exception {
            file: "a.js".to_owned(),
            line,
            column,
            message: "SyntaxError: unexpected token".to_owned(),
        };
        let told_fault = fault(&error(2, 10), &load);
        assert_eq!(told_fault.message, "SyntaxError: unexpected token in a.js:2");
        assert_eq!(told_fault.hint.unwrap(), "let b = (;\n               ^");
        assert_eq!(fault(&error(9, 1), &load).hint, None);
        assert_eq!(fault(&error(1, 0), &load).hint.unwrap(), "let a;");
    }
}
