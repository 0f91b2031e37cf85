//! A table for each part of a report.

mod caches;
mod connections;
mod disks;
pub mod header;
mod loops;
mod requests;
mod upstreams;

use crate::model::Report;
use crate::table::{Column, Row, Table, Tone};

/// The tables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pane {
    /// Event loops.
    #[default]
    Loops,
    /// Thread pools and devices.
    Disks,
    /// Caches.
    Caches,
    /// Upstream servers.
    Upstreams,
    /// The slowest requests.
    Requests,
    /// Connections by protocol.
    Connections,
}

impl Pane {
    /// All of them, in the order of the screen.
    pub const ALL: [Self; 6] =
        [Self::Loops, Self::Disks, Self::Caches, Self::Upstreams, Self::Requests, Self::Connections];

    /// Number of the table, from 0.
    pub fn index(self) -> usize {
        Self::ALL.iter().position(|pane| *pane == self).unwrap_or_default()
    }

    /// Title of the table.
    pub fn title(self) -> &'static str {
        match self {
            Self::Loops => "Loops",
            Self::Disks => "Disks",
            Self::Caches => "Caches",
            Self::Upstreams => "Upstreams",
            Self::Requests => "Requests",
            Self::Connections => "Connections",
        }
    }

    /// The table that is `steps` further, around the end.
    pub fn step(self, steps: isize) -> Self {
        let count = Self::ALL.len() as isize;
        Self::ALL[(self.index() as isize + steps).rem_euclid(count) as usize]
    }

    /// Columns of the table.
    pub fn columns(self) -> &'static [Column] {
        match self {
            Self::Loops => loops::COLUMNS,
            Self::Disks => disks::COLUMNS,
            Self::Caches => caches::COLUMNS,
            Self::Upstreams => upstreams::COLUMNS,
            Self::Requests => requests::COLUMNS,
            Self::Connections => connections::COLUMNS,
        }
    }

    /// The table with the numbers of a report.
    pub fn table(self, report: &Report) -> Table {
        let (rows, empty): (Vec<Row>, _) = match self {
            Self::Loops => (report.loops.iter().map(loops::row).collect(), "no event loops in the response"),
            Self::Disks => (report.disks.iter().map(disks::row).collect(), "no thread pools in the response"),
            Self::Caches => {
                (report.caches.iter().map(caches::row).collect(), "no caches: proxy_cache_path defines one")
            }
            Self::Upstreams => (report.upstreams.iter().map(upstreams::row).collect(), "no upstream servers"),
            Self::Requests => {
                let empty = match report.requests {
                    Some(_) => "no requests in the last minute",
                    None => "this URL does not show requests: use that of a status_page",
                };
                (report.requests.iter().flatten().map(requests::row).collect(), empty)
            }
            Self::Connections => {
                let rows = report.connections.iter().map(connections::row).collect();
                (rows, "no connections by protocol in the response")
            }
        };
        Table { columns: self.columns(), rows, empty }
    }
}

/// Meaning of a share of something that should not be used up.
fn load_tone(share: Option<f64>) -> Tone {
    match share {
        Some(share) if share >= 0.9 => Tone::Bad,
        Some(share) if share >= 0.7 => Tone::Warning,
        _ => Tone::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::parse;

    #[test]
    fn tables_have_a_cell_for_each_column_and_fit_into_80_columns() {
        let second = parse(include_bytes!("../testdata/second.json")).unwrap();
        let report = Report::new(None, &second, 1.0);
        for pane in Pane::ALL {
            let table = pane.table(&report);
            for row in &table.rows {
                assert_eq!(row.len(), table.columns.len(), "{pane:?}");
            }
            for width in [80, 100, 120, 160] {
                let layout = table.layout(width);
                let used: u16 = layout.iter().map(|(_, width)| width + 1).sum();
                assert!(used <= width + 1, "{pane:?} at {width}: {used}");
                let fill = |at: usize| table.columns[at].width == crate::table::FILL;
                assert!(
                    layout.iter().all(|(at, width)| !fill(*at) || *width >= 16),
                    "{pane:?} at {width}: {layout:?}"
                );
            }
        }
    }

    #[test]
    fn panes_go_around() {
        assert_eq!(Pane::Loops.step(-1), Pane::Connections);
        assert_eq!(Pane::Connections.step(1), Pane::Loops);
        assert!(Pane::ALL.iter().enumerate().all(|(at, pane)| pane.index() == at));
    }
}
