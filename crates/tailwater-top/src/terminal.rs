//! The terminal: a thread reads the server, and the main thread shows what it has read and takes keys.

use std::env;
use std::io::{self, IsTerminal};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use crate::app::{Answer, App, Outcome};
use crate::keys::action;
use crate::options::{Colours, Options};
use crate::screen;
use crate::source::trust::token_field;
use crate::source::{self, Fetcher, Snapshot};
use crate::theme::Theme;

/// Time that a server has for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for a key before answers are looked at.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// Prepares reads: certificates and the token are read once.
fn fetcher(options: &Options) -> Result<Fetcher, String> {
    let mut fields = options.fields.clone();
    if let Some(path) = &options.token_file {
        fields.push(token_field(path)?);
    }
    Fetcher::new(&options.target, &fields, &options.trust)
}

/// Reads the server once.
fn read(fetcher: &Fetcher) -> Result<Snapshot, String> {
    let document = fetcher.fetch(TIMEOUT).map_err(|error| error.to_string())?;
    source::parse(&document).map_err(|error| error.to_string())
}

/// State after two reads with the interval between them.
///
/// # Errors
/// The reason why the server cannot be read.
pub fn read_twice(options: &Options) -> Result<App, String> {
    let mut app = new_app(options);
    let fetcher = fetcher(options)?;
    let began = Instant::now();
    app.receive((0.0, Ok(read(&fetcher)?)));
    thread::park_timeout(options.interval);
    app.receive((began.elapsed().as_secs_f64(), Ok(read(&fetcher)?)));
    Ok(app)
}

/// Shows screens until a key ends it.
///
/// # Errors
/// There is no terminal, or it does not work; or a file of the options cannot be used.
pub fn run(options: Options) -> io::Result<()> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(io::Error::other("this is no terminal: --once prints text"));
    }
    if env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb") {
        return Err(io::Error::other("this terminal cannot show screens (TERM): --once prints text"));
    }
    let mut app = new_app(&options);
    let theme = theme(&options);
    let fetcher = fetcher(&options).map_err(io::Error::other)?;
    let (sender, answers) = channel();
    // The thread ends with the process, even if the server does not answer.
    thread::Builder::new()
        .name("reader".to_owned())
        .spawn(move || read_again_and_again(&fetcher, options.interval, &sender))?;
    let mut terminal = ratatui::try_init()?;
    let ended = show(&mut terminal, &mut app, &answers, theme);
    ratatui::restore();
    ended
}

fn new_app(options: &Options) -> App {
    App::new(options.url.clone(), options.pane.unwrap_or_default(), options.filter.clone())
}

/// Colours unless they are off: by an option, or by `NO_COLOR`.
fn theme(options: &Options) -> Theme {
    let is_off = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if is_off || options.colours == Colours::Off { Theme::Plain } else { Theme::Colours }
}

/// Reads the server once in each interval, as long as the answers are received.
fn read_again_and_again(fetcher: &Fetcher, interval: Duration, answers: &Sender<Answer>) {
    let began = Instant::now();
    loop {
        let asked = Instant::now();
        let answer = read(fetcher);
        if answers.send((began.elapsed().as_secs_f64(), answer)).is_err() {
            return;
        }
        thread::park_timeout(interval.saturating_sub(asked.elapsed()));
    }
}

fn show(
    terminal: &mut DefaultTerminal,
    app: &mut App,
    answers: &Receiver<Answer>,
    theme: Theme,
) -> io::Result<()> {
    terminal.draw(|frame| screen::draw(frame, app, theme))?;
    loop {
        let mut is_changed = false;
        if event::poll(KEY_WAIT)? {
            match event::read()? {
                Event::Key(key) => {
                    if let Some(action) = action(key, app.mode)
                        && app.act(action) == Outcome::Ends
                    {
                        return Ok(());
                    }
                    is_changed = true;
                }
                Event::Resize(..) => is_changed = true,
                _ => {}
            }
        }
        for answer in answers.try_iter() {
            app.receive(answer);
            is_changed = true;
        }
        if is_changed {
            terminal.draw(|frame| screen::draw(frame, app, theme))?;
        }
    }
}
