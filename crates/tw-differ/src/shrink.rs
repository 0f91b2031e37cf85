//! Smallest case that still shows a difference: parts are left out as long as it does.

use crate::case::Case;
use crate::node;

/// Leaves out parts of a case while `shows` holds, with at most `budget` calls of it.
pub(crate) fn shrink(
    case: &Case,
    exchange: usize,
    budget: usize,
    mut shows: impl FnMut(&Case) -> bool,
) -> Case {
    let mut best = case.clone();
    let mut remaining = budget;
    let mut attempt = |best: &mut Case, candidate: Case| {
        if remaining == 0 || candidate == *best {
            return false;
        }
        remaining -= 1;
        let is_better = shows(&candidate);
        if is_better {
            *best = candidate;
        }
        is_better
    };
    if let Some(alone) = case.exchanges.get(exchange) {
        attempt(&mut best, Case { exchanges: vec![alone.clone()], ..case.clone() });
    }
    loop {
        let before = best.clone();
        // Large pieces first: most directives have nothing to do with the difference.
        for size in [16, 8, 4, 2, 1] {
            let mut at = 0;
            while at < node::count(&best.nodes) {
                let end = (at + size).min(node::count(&best.nodes));
                let nodes =
                    (at..end).rev().fold(best.nodes.clone(), |nodes, index| node::without(&nodes, index));
                let smaller = Case { nodes, ..best.clone() };
                if !attempt(&mut best, smaller) {
                    at += size;
                }
            }
        }
        let mut at = 0;
        while at < node::count(&best.nodes) {
            let opened = node::opened(&best.nodes, at).map(|nodes| Case { nodes, ..best.clone() });
            if !opened.is_some_and(|opened| attempt(&mut best, opened)) {
                at += 1;
            }
        }
        while let [exchange] = best.exchanges.as_slice() {
            let smaller = exchange.smaller();
            let mut candidates = smaller
                .into_iter()
                .map(|exchange| Case { exchanges: vec![exchange], ..best.clone() })
                .collect::<Vec<_>>();
            if !candidates.drain(..).any(|candidate| attempt(&mut best, candidate)) {
                break;
            }
        }
        if best == before {
            return best;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate;
    use crate::node::{block, line};
    use crate::request::{Exchange, Request, RequestBody, Wire};

    fn case() -> Case {
        let request = Request {
            method: "POST".to_owned(),
            target: "/a?b".to_owned(),
            protocol: "HTTP/1.1".to_owned(),
            fields: vec![("Host".to_owned(), "h".to_owned()), ("X".to_owned(), "1".to_owned())],
            body: RequestBody::Sized("x".to_owned()),
        };
        let exchange = Exchange { wire: Wire::Http1, requests: vec![request.clone(), request] };
        let location = block("location /", vec![line("return 204"), line("expires 1h")]);
        Case {
            nodes: vec![line("gzip on"), block("server", vec![line("listen 1"), location, line("etag off")])],
            script: Vec::new(),
            exchanges: vec![exchange.clone(), exchange],
        }
    }

    #[test]
    fn only_what_matters_stays() {
        let shows = |case: &Case| {
            let text = node::render(&case.nodes);
            text.contains("listen") && text.contains("expires") && !case.exchanges.is_empty()
        };
        let small = shrink(&case(), 1, 1000, shows);
        assert_eq!(node::render(&small.nodes), "listen 1;\nexpires 1h;\n");
        assert_eq!(small.exchanges[0].bytes(), "GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
    }

    #[test]
    fn shrinking_ends_with_its_budget() {
        let mut calls = 0;
        let case = generate::case(3, generate::Area::Routing);
        let small = shrink(&case, 0, 7, |_| {
            calls += 1;
            false
        });
        assert_eq!((calls, small), (7, case));
    }
}
