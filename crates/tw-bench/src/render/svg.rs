//! Plots as inline SVG, coloured by classes of the page.

use std::fmt::Write as _;

use super::results::readable;
use crate::plot::{Kind, Line, Plot};
use crate::report::number;

/// Size of a plot in its own units; the page scales it.
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 250.0;
/// Room left of the axis for its numbers, below it, above and right of the lines.
const LEFT: f64 = 66.0;
const BOTTOM: f64 = 26.0;
const TOP: f64 = 18.0;
const RIGHT: f64 = 12.0;
/// Height of a bar with its room.
const BAR: f64 = 21.0;
/// Most room for the names of bars, and about the width of one of their characters.
const NAMES_MAX: f64 = 262.0;
const CHARACTER: f64 = 5.9;
/// Room for the numbers behind bars.
const NUMBERS: f64 = 88.0;
/// Ratio of values from which an axis is logarithmic.
const WIDE: f64 = 60.0;

/// Scale of an axis.
#[derive(Debug, Clone, Copy)]
struct Axis {
    from: f64,
    to: f64,
    is_log: bool,
    /// Places of both ends.
    at: (f64, f64),
}

/// Text with the characters of markup escaped.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Figure with a title, a legend and the plot.
pub(super) fn figure(plot: &Plot) -> String {
    let title = escape(&readable(&plot.title));
    let svg = match plot.kind {
        Kind::Time => lines(plot, time_axis(plot), time_ticks),
        Kind::Percentiles => {
            let plot = Plot { lines: plot.lines.iter().map(by_nines).collect(), ..plot.clone() };
            let axis =
                Axis { from: 0.3, to: most_x(&plot).max(2.0), is_log: false, at: (LEFT, WIDTH - RIGHT) };
            lines(&plot, axis, percent_ticks)
        }
        Kind::Bars => bars(plot),
    };
    let legend = if plot.kind == Kind::Bars { String::new() } else { legend(plot) };
    format!("<figure><figcaption>{title}</figcaption>{legend}{svg}</figure>\n")
}

/// Classes of a line: family of the contestant, and its number in that family.
fn classes(plot: &Plot, nth: usize) -> String {
    let family = |name: &str| match name {
        name if name.starts_with("ours") || name.starts_with("Tailwater") => "ours",
        name if name.starts_with("nginx") => "nginx",
        name if name.starts_with("haproxy") => "haproxy",
        name if name.starts_with("bare") => "bare",
        _ => "other",
    };
    let Some(line) = plot.lines.get(nth) else { return String::new() };
    let own = family(&line.name);
    let before = plot.lines[..nth].iter().filter(|other| family(&other.name) == own).count();
    format!("{own} v{}", before.min(3))
}

fn legend(plot: &Plot) -> String {
    let mut out = "<p class=\"legend\">".to_owned();
    for (nth, line) in plot.lines.iter().enumerate() {
        let name = escape(&readable(&line.name));
        let classes = classes(plot, nth);
        let _ = write!(
            out,
            "<span><svg class=\"key {classes}\" viewBox=\"0 0 24 8\" aria-hidden=\"true\"><path d=\"M1 4H23\"/></svg>{name}</span>"
        );
    }
    out + "</p>"
}

/// Place of a share of requests on an axis of nines: 0.9 is at 1, 0.99 at 2.
fn nines(share: f64) -> f64 {
    -(1.0 - share).max(1e-6).log10()
}

fn by_nines(line: &Line) -> Line {
    let points = line.points.iter().filter(|(share, _)| *share < 1.0).map(|(share, y)| (nines(*share), *y));
    Line { name: line.name.clone(), points: points.collect() }
}

fn most_x(plot: &Plot) -> f64 {
    plot.lines.iter().flat_map(|line| &line.points).map(|(x, _)| *x).fold(0.0, f64::max)
}

fn time_axis(plot: &Plot) -> Axis {
    let marked = plot.marks.iter().map(|(_, to, _)| *to).fold(1.0, f64::max);
    Axis { from: 0.0, to: most_x(plot).max(marked), is_log: false, at: (LEFT, WIDTH - RIGHT) }
}

/// Seconds and their texts.
fn time_ticks(axis: Axis) -> Vec<(f64, String)> {
    steps(axis.to).into_iter().map(|second| (second, format!("{second} s"))).collect()
}

fn percent_ticks(axis: Axis) -> Vec<(f64, String)> {
    let known_names = [(0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %")];
    let all = known_names.into_iter().map(|(share, text)| (nines(share), text.to_owned()));
    all.filter(|(place, _)| *place <= axis.to + 1e-9).collect()
}

/// Round values from 0 to at most `to`, five or so.
fn steps(to: f64) -> Vec<f64> {
    let raw = (to / 5.0).max(1e-9);
    let power = 10_f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= raw);
    let step = step.unwrap_or(raw);
    let count = (to / step + 1e-9).floor() as usize;
    // Without the noise of binary fractions, which a label would show.
    (0..=count).map(|nth| ((nth as f64 * step) * 1e6).round() / 1e6).collect()
}

/// Axis of values: logarithmic if they are far apart.
fn value_axis(plot: &Plot) -> Axis {
    let values = || plot.lines.iter().flat_map(|line| &line.points).map(|(_, y)| *y);
    let most = values().fold(0.0, f64::max);
    let least = values().filter(|y| *y > 0.0).fold(f64::INFINITY, f64::min);
    let at = (HEIGHT - BOTTOM, TOP);
    let has_zero = values().any(|y| y <= 0.0);
    if plot.kind == Kind::Percentiles || (!has_zero && most / least > WIDE) {
        let from = 10_f64.powf(least.min(most).max(1e-9).log10().floor());
        return Axis { from, to: 10_f64.powf(most.max(from * 1.1).log10().ceil()), is_log: true, at };
    }
    // A share ends at 100 %.
    let top = if plot.unit == " %" && most > 0.0 { most.clamp(1.0, 100.0) } else { most.max(1e-6) };
    let step = steps(top).get(1).copied().unwrap_or(top);
    Axis { from: 0.0, to: (top / step - 1e-9).ceil() * step, is_log: false, at }
}

impl Axis {
    fn place(&self, value: f64) -> f64 {
        let share = if self.is_log {
            (value.max(self.from) / self.from).log10() / (self.to / self.from).log10()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        self.at.0 + (self.at.1 - self.at.0) * share.clamp(0.0, 1.0)
    }

    fn value_ticks(&self) -> Vec<f64> {
        if self.is_log {
            let low = self.from.log10().round() as i32;
            let high = self.to.log10().round() as i32;
            (low..=high).map(|power| 10_f64.powi(power)).collect()
        } else {
            steps(self.to)
        }
    }
}

/// A number without decimals that say nothing.
fn short(value: f64) -> String {
    let text = number(value);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn lines(plot: &Plot, x: Axis, x_ticks: fn(Axis) -> Vec<(f64, String)>) -> String {
    let y = value_axis(plot);
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
        escape(&readable(&plot.title))
    );
    let floor = HEIGHT - BOTTOM;
    let ceiling = TOP;
    for (from, to, name) in &plot.marks {
        let remaining = x.place(*from);
        let right = x.place(*to);
        let _ = write!(
            out,
            "<rect class=\"mark\" x=\"{remaining:.1}\" y=\"{ceiling}\" width=\"{:.1}\" height=\"{:.1}\"/><text class=\"mark\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            right - remaining,
            floor - ceiling,
            remaining,
            ceiling - 4.0,
            escape(name)
        );
    }
    for value in y.value_ticks() {
        let place = y.place(value);
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{LEFT} {place:.1}H{:.1}\"/><text class=\"tick end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 5.0,
            place + 4.0,
            tick_number(value, &plot.unit)
        );
    }
    for (value, text) in x_ticks(x) {
        let place = x.place(value);
        // The last one would not fit.
        let anchor = if place > WIDTH - 3.0 * RIGHT { "end" } else { "middle" };
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{place:.1} {floor:.1}v4\"/><text class=\"tick {anchor}\" x=\"{place:.1}\" y=\"{:.1}\">{text}</text>",
            floor + 17.0
        );
    }
    for (nth, line) in plot.lines.iter().enumerate() {
        let mut path = String::new();
        for (at, (px, py)) in line.points.iter().enumerate() {
            let _ =
                write!(path, "{}{:.1} {:.1}", if at == 0 { 'M' } else { 'L' }, x.place(*px), y.place(*py));
        }
        let name = escape(&readable(&line.name));
        let _ = write!(
            out,
            "<path class=\"line {}\" d=\"{path}\"><title>{name}</title></path>",
            classes(plot, nth)
        );
    }
    out + "</svg>"
}

/// A number with its unit at an axis: thousands are short.
fn tick_number(value: f64, unit: &str) -> String {
    match value {
        v if unit == " ms" && v >= 1e3 => format!("{} s", short(v / 1e3)),
        v if v >= 1e6 => format!("{}M{unit}", short(v / 1e6)),
        v if v >= 1e4 => format!("{}k{unit}", short(v / 1e3)),
        v => format!("{}{unit}", short(v)),
    }
}

/// Horizontal bars with the half of their range.
fn bars(plot: &Plot) -> String {
    let value = |line: &Line| line.points.first().copied().unwrap_or((f64::NAN, 0.0));
    let most = plot.lines.iter().map(|line| value(line).0 + value(line).1).fold(0.0, f64::max).max(1e-9);
    let names: Vec<String> = plot.lines.iter().map(|line| readable(&line.name)).collect();
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let remaining = (longest as f64 * CHARACTER + 12.0).min(NAMES_MAX);
    let height = BAR * plot.lines.len() as f64 + 4.0;
    let scale = (WIDTH - remaining - NUMBERS) / most;
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
        escape(&readable(&plot.title))
    );
    for (nth, (line, name)) in plot.lines.iter().zip(&names).enumerate() {
        let (size, range) = value(line);
        if !size.is_finite() {
            continue;
        }
        let top = BAR * nth as f64 + 3.0;
        let middle = BAR * nth as f64 + 3.0 + BAR / 2.0 - 2.0;
        let end = remaining + size * scale;
        let _ = write!(
            out,
            "<text class=\"name end\" x=\"{:.1}\" y=\"{:.1}\">{}</text><rect class=\"bar {}\" x=\"{remaining:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
            remaining - 6.0,
            middle + 4.0,
            escape(&cut(name)),
            classes(plot, nth),
            size * scale,
            BAR - 5.0
        );
        if range > 0.0 {
            let _ = write!(
                out,
                "<path class=\"range\" d=\"M{:.1} {middle:.1}H{:.1}\"/>",
                end - range * scale,
                end + range * scale
            );
        }
        let _ = write!(
            out,
            "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}{}</text>",
            end + range * scale + 6.0,
            middle + 4.0,
            number(size),
            escape(&plot.unit)
        );
    }
    out + "</svg>"
}

/// A name that fits beside its bar.
fn cut(name: &str) -> String {
    let fit = (NAMES_MAX / CHARACTER) as usize;
    if name.chars().count() > fit {
        name.chars().take(fit - 1).chain(['…']).collect()
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        for (to, expected) in [
            (10.0, vec![0.0, 2.0, 4.0, 6.0, 8.0, 10.0]),
            (0.7, vec![0.0, 0.2, 0.4, 0.6]),
            (48.0, vec![0.0, 10.0, 20.0, 30.0, 40.0]),
        ] {
            assert_eq!(steps(to), expected);
        }
    }

    #[test]
    fn values_far_apart_have_a_logarithmic_axis() {
        let mut plot = Plot::new(Kind::Time, "t", " ms");
        plot.line("ours", vec![(0.0, 0.5), (1.0, 2.0)]);
        assert!(!value_axis(&plot).is_log);
        plot.line("nginx", vec![(0.0, 200.0)]);
        let axis = value_axis(&plot);
        assert!(axis.is_log && axis.value_ticks() == [0.1, 1.0, 10.0, 100.0, 1000.0], "{axis:?}");
        assert_eq!((axis.place(0.1), axis.place(1000.0)), axis.at);
    }

    #[test]
    fn shares_are_placed_by_their_nines() {
        assert!((nines(0.99) - 2.0).abs() < 1e-9 && (nines(0.5) - 0.301).abs() < 1e-3);
    }

    #[test]
    fn figures_of_all_kinds_name_their_lines() {
        for kind in [Kind::Time, Kind::Percentiles, Kind::Bars] {
            let mut plot = Plot::new(kind, "a <title>", " ms").mark(0.0, 1.0, "cold load");
            plot.line("ours", vec![(0.5, 1.0), (0.99, 3.0)]);
            plot.line("nginx, aio threads", vec![(0.5, 1.0), (0.99, 300.0)]);
            let figure = figure(&plot);
            assert!(figure.contains("a &lt;title&gt;") && figure.contains("Tailwater"), "{figure}");
            assert!(figure.contains("nginx v0") && !figure.contains("NaN"), "{figure}");
        }
    }
}
