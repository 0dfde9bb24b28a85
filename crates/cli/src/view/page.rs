//! A run as one HTML page that loads nothing and needs no script.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use outlive_base::count;
use outlive_control::processes;
use outlive_control::report::{ErrorEntry, FailureEntry, PolicyEntry, Report};
use outlive_control::units::{show_bytes, show_ms};
use outlive_control::whereabouts;
use outlive_launch::record::Run;
use outlive_launch::record::lines::{SpanKind, SpanLine};
use outlive_node::picture::escape;

use crate::scrub;

use super::history::{History, Part, by_level};
use super::{Seen, picture, show_seconds};

/// Events that are listed; of more, the last.
const EVENTS_MAX: usize = 2_000;
/// So many events are shown without being asked for.
const EVENTS_OPEN: usize = 60;

const STYLE: &str = include_str!("page.css");

/// The page.
pub fn html(seen: &Seen) -> String {
    let (report, run) = (&seen.report, seen.run.as_ref());
    let history = History::new(report, run);
    let title = escape(&format!("{}: {}", report.job, report.result));
    let mut body = String::new();
    head(&mut body, report, run);
    figures(&mut body, report, &history);
    timeline(&mut body, seen, &history);
    failures(&mut body, report);
    hangs(&mut body, report);
    checkpoints(&mut body, report, run);
    if let Some(policy) = &report.policy {
        decided(&mut body, policy);
    }
    errors(&mut body, "What ended the job", &report.errors);
    errors(&mut body, "Warnings", &report.warnings);
    if let Some(run) = run {
        events(&mut body, run);
    }
    format!(
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n\
         <meta name='viewport' content='width=device-width, initial-scale=1'>\n\
         <meta name='color-scheme' content='light dark'>\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
}

fn head(body: &mut String, report: &Report, run: Option<&Run>) {
    let (job, result) = (escape(&report.job), escape(&report.result));
    let status = match report.exit_status {
        0 => String::new(),
        status => format!(", exit status {status}"),
    };
    let began = run.map_or_else(String::new, |run| {
        format!("began {}, ", escape(&run.header.began))
    });
    let ranks = report.ranks.map_or_else(
        || "ranks not known yet".to_owned(),
        |ranks| count(ranks, "rank"),
    );
    let class = match report.result.as_str() {
        "finished" => "good",
        "failed" => "bad",
        _ => "other",
    };
    let _ = writeln!(
        body,
        "<header>\n<h1>{job} <span class='badge {class}'>{result}{status}</span></h1>\n\
         <p>{began}{}, {ranks}</p>\n</header>",
        count(report.nodes, "node")
    );
}

/// What counts, in large.
fn figures(body: &mut String, report: &Report, history: &History) {
    let counts = &report.checkpoints;
    let away: f64 = history.recoveries.iter().map(|it| it.when.seconds()).sum();
    let lost: u64 = report
        .failures
        .iter()
        .filter_map(|it| it.versions_lost)
        .sum();
    let mut all = vec![
        (show_seconds(history.seconds), "duration".to_owned()),
        (
            report.failures.len().to_string(),
            match report.failures.len() {
                1 => "failure".to_owned(),
                _ => "failures".to_owned(),
            },
        ),
        (
            show_seconds(away),
            format!("in recoveries, {}", count(report.restarts, "restart")),
        ),
        (lost.to_string(), "versions computed again".to_owned()),
        (
            counts.taken.to_string(),
            format!("checkpoints, {}", show_bytes(counts.bytes)),
        ),
    ];
    if counts.blocked_ms_max > 0.0 {
        let blocked = show_ms(counts.blocked_ms_max);
        all.push((blocked, "a rank was blocked at most".to_owned()));
    }
    body.push_str("<section class='figures'>\n");
    for (figure, of) in all {
        let _ = writeln!(
            body,
            "<div><b>{}</b><span>{}</span></div>",
            escape(&figure),
            escape(&of)
        );
    }
    body.push_str("</section>\n");
}

fn timeline(body: &mut String, seen: &Seen, history: &History) {
    let drawn = picture::timeline(&seen.report, seen.run.as_ref(), history);
    let _ = write!(
        body,
        "<section>\n<h2>Timeline</h2>\n<div class='wide'>\n{drawn}</div>\n"
    );
    let mut legend = vec![("runs", "the command runs"), ("failure", "failure")];
    legend.extend(Part::ALL.map(|part| (part.name(), part.name())));
    if !history.stable.is_empty() {
        legend.extend([("captured", "captured"), ("stable", "stable")]);
    }
    let nodes = seen.run.as_ref().filter(|run| !run.spans.is_empty());
    if nodes.is_some_and(|run| run.header.nodes <= picture::NODES_MAX) {
        legend.extend([("write", "written"), ("commit", "committed")]);
    }
    body.push_str("<p class='legend'>");
    for (class, name) in legend {
        let _ = write!(body, "<span><i class='{class}'></i>{name}</span> ");
    }
    body.push_str("</p>\n");
    if seen.run.is_none() {
        body.push_str(
            "<p class='note'>Drawn from the report alone: what happened in between is kept beside \
             report.json in the job's directory.</p>\n",
        );
    } else if seen.run.as_ref().is_some_and(|run| run.is_cut) {
        body.push_str("<p class='note'>The beginning is not kept any more.</p>\n");
    }
    body.push_str("</section>\n");
}

fn failures(body: &mut String, report: &Report) {
    body.push_str("<section>\n<h2>Failures</h2>\n");
    if report.failures.is_empty() {
        body.push_str("<p>None.</p>\n</section>\n");
        return;
    }
    let sum = |it: &FailureEntry| {
        Part::ALL
            .iter()
            .filter_map(|part| part.ms_of(it))
            .sum::<f64>()
    };
    let longest = report.failures.iter().map(sum).fold(0.0, f64::max);
    table_head(body, &["At", "What", "Went on from", "Lost", "Recovery"]);
    for failure in &report.failures {
        let from = match (failure.version, &failure.level) {
            (Some(version), Some(level)) => format!("version {version}, {level}"),
            (Some(version), None) => format!("version {version}"),
            (None, _) if failure.relaunch_ms.is_some() => "the beginning".to_owned(),
            (None, _) => "-".to_owned(),
        };
        let lost = failure
            .versions_lost
            .map_or_else(|| "-".to_owned(), |n| n.to_string());
        let injected = if failure.injected { " (injected)" } else { "" };
        let mut notes: Vec<String> = failure
            .rejected
            .iter()
            .map(|it| format!("version {} could not be used: {}", it.version, it.reason))
            .collect();
        if failure.uncertain {
            notes.push("a newer version may have existed on nodes that are gone".to_owned());
        }
        let notes: String = notes
            .iter()
            .map(|note| format!("<br><small>{}</small>", escape(note)))
            .collect();
        let _ = writeln!(
            body,
            "<tr><td class='n'>{}</td><td><b>{}</b>{injected}<br>{}{notes}</td><td>{}</td>\
             <td class='n'>{lost}</td><td>{}</td></tr>",
            show_seconds(failure.at_seconds),
            escape(&failure.place),
            escape(&failure.cause),
            escape(&from),
            recovery(failure, longest)
        );
    }
    body.push_str("</tbody></table></div>\n</section>\n");
}

/// Times at which the ranks made no progress.
fn hangs(body: &mut String, report: &Report) {
    if report.hangs.is_empty() {
        return;
    }
    body.push_str("<section>\n<h2>No progress</h2>\n");
    table_head(
        body,
        &[
            "At",
            "Since version",
            "For",
            "Where the ranks were, or the command",
        ],
    );
    for hang in &report.hangs {
        let version = hang
            .version
            .map_or_else(|| "-".to_owned(), |n| n.to_string());
        let places = match hang.joining {
            true => format!("no rank joined: {}", processes::line(&hang.processes)),
            false => whereabouts::line(&hang.places),
        };
        let after = match hang.resumed_seconds {
            Some(seconds) => format!("went on after {}", show_seconds(seconds)),
            None => format!("what was done: {}", hang.action.name()),
        };
        let _ = writeln!(
            body,
            "<tr><td class='n'>{}</td><td class='n'>{version}</td><td class='n'>{}</td>\
             <td>{}<br><small>{after}; all stacks: {}</small></td></tr>",
            show_seconds(hang.at_seconds),
            show_seconds(hang.still_seconds),
            escape(&places),
            escape(&hang.file)
        );
    }
    body.push_str("</tbody></table></div>\n</section>\n");
}

fn recovery(failure: &FailureEntry, longest_ms: f64) -> String {
    let known = |part: &Part| Some((part.name(), part.ms_of(failure)?));
    let known: Vec<(&str, f64)> = Part::ALL.iter().filter_map(known).collect();
    if known.is_empty() {
        return "none".to_owned();
    }
    let words: Vec<String> = known
        .iter()
        .map(|(name, ms)| format!("{name} {}", show_seconds(ms / 1e3)))
        .collect();
    let bar = picture::phases(failure, longest_ms);
    format!("{bar}<small>{}</small>", words.join(", "))
}

fn table_head(body: &mut String, names: &[&str]) {
    body.push_str("<div class='wide'><table>\n<thead><tr>");
    for name in names {
        let _ = write!(body, "<th>{name}</th>");
    }
    body.push_str("</tr></thead>\n<tbody>\n");
}

/// The median and the largest of what took so many seconds.
fn spread(mut seconds: Vec<f64>) -> String {
    seconds.sort_by(f64::total_cmp);
    match (seconds.get(seconds.len() / 2), seconds.last()) {
        (Some(median), Some(most)) => {
            format!(
                "{} ({} at most)",
                show_seconds(*median),
                show_seconds(*most)
            )
        }
        _ => "-".to_owned(),
    }
}

fn checkpoints(body: &mut String, report: &Report, run: Option<&Run>) {
    let counts = &report.checkpoints;
    body.push_str("<section>\n<h2>Checkpoints</h2>\n");
    if counts.taken == 0 && counts.stable.is_empty() {
        body.push_str("<p>None was taken.</p>\n</section>\n");
        return;
    }
    let _ = writeln!(
        body,
        "<p>{} captured by all ranks, {} given up.</p>",
        count(counts.taken, "version"),
        counts.aborted
    );
    for text in scrub::describe(report) {
        let _ = writeln!(body, "<p>{}</p>", escape(&text));
    }
    let mut took: BTreeMap<(&str, SpanKind), Vec<f64>> = BTreeMap::new();
    let spans = run.map_or(&[][..], |run| &run.spans);
    for (level, span) in spans.iter().filter_map(of_level) {
        took.entry((level, span.kind))
            .or_default()
            .push(span.seconds);
    }
    table_head(
        body,
        &[
            "Level",
            "Stable",
            "Newest",
            "Written in, by node",
            "Committed in",
        ],
    );
    for (level, stable) in by_level(&counts.stable) {
        let last = counts
            .last
            .get(level)
            .map_or_else(|| "-".to_owned(), |it| it.to_string());
        let mut of = |kind| spread(took.remove(&(level.as_str(), kind)).unwrap_or_default());
        let (written, committed) = (of(SpanKind::Write), of(SpanKind::Commit));
        let _ = writeln!(
            body,
            "<tr><td>{}</td><td class='n'>{stable}</td><td class='n'>{last}</td>\
             <td>{written}</td><td>{committed}</td></tr>",
            escape(level)
        );
    }
    body.push_str("</tbody></table></div>\n");
    if !spans.is_empty() {
        body.push_str("<p class='note'>Times are medians over versions and nodes.</p>\n");
    }
    body.push_str("</section>\n");
}

fn of_level(span: &SpanLine) -> Option<(&'static str, &SpanLine)> {
    Some((span.level?.name(), span))
}

fn decided(body: &mut String, policy: &PolicyEntry) {
    let _ = writeln!(
        body,
        "<section>\n<h2>When a checkpoint is wanted</h2>\n<p>{}</p>",
        escape(&policy.why)
    );
    if policy.mode == "auto" {
        table_head(
            body,
            &["Level", "Every", "Until kept", "Mean time between failures"],
        );
        for level in &policy.levels {
            let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
            let mtbf = match (
                level.mtbf_seconds,
                level.mtbf_low_seconds,
                level.mtbf_high_seconds,
            ) {
                (Some(mean), Some(low), Some(high)) => Some(format!(
                    "{} ({} to {})",
                    show_seconds(mean),
                    show_seconds(low),
                    show_seconds(high)
                )),
                (mean, ..) => mean.map(show_seconds),
            };
            let _ = writeln!(
                body,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                escape(&level.level),
                or_none(level.seconds.map(show_seconds)),
                or_none(level.background_ms.map(show_ms)),
                or_none(mtbf)
            );
        }
        body.push_str("</tbody></table></div>\n");
    }
    body.push_str("</section>\n");
}

fn errors(body: &mut String, title: &str, errors: &[ErrorEntry]) {
    if errors.is_empty() {
        return;
    }
    let _ = writeln!(body, "<section>\n<h2>{title}</h2>");
    for error in errors {
        let more = match error.more {
            0 => String::new(),
            more => format!(" <small>and {more} more like it</small>"),
        };
        let _ = writeln!(
            body,
            "<div class='error'><p><b>{}</b> {}: {}: {}{more}</p>\n<p>What to do: {}</p></div>",
            escape(&error.code),
            escape(&error.text),
            escape(&error.entity),
            escape(&error.reason),
            escape(&error.remedy)
        );
    }
    body.push_str("</section>\n");
}

fn events(body: &mut String, run: &Run) {
    let skipped = run.told.len().saturating_sub(EVENTS_MAX);
    let shown = &run.told[skipped..];
    let open = if shown.len() <= EVENTS_OPEN {
        " open"
    } else {
        ""
    };
    let _ = writeln!(
        body,
        "<section>\n<h2>Events</h2>\n<details{open}><summary>{}</summary>",
        count(run.told.len() as u64, "event")
    );
    if skipped > 0 {
        let _ = writeln!(body, "<p class='note'>The last {EVENTS_MAX} of them.</p>");
    }
    body.push_str("<div class='wide'><table class='events'><tbody>\n");
    for told in shown {
        let bad = told
            .event
            .as_ref()
            .is_some_and(|it| outlive_launch::timeline::weight(it).1);
        let class = if bad { " class='bad'" } else { "" };
        let _ = writeln!(
            body,
            "<tr{class}><td class='n'>{:.1} s</td><td>{}</td></tr>",
            told.at,
            escape(&told.words)
        );
    }
    body.push_str("</tbody></table></div></details>\n</section>\n");
}

#[cfg(test)]
mod tests {
    use outlive_control::processes::Alike;
    use outlive_control::report::HangEntry;

    use super::*;
    use crate::view::history::tests::sample;

    #[test]
    fn everything_of_a_run_is_on_its_page_and_nothing_of_it_is_markup() {
        let (report, run) = sample();
        let told = run.told.len();
        let page = html(&Seen {
            report: report.clone(),
            run: Some(run),
        });
        assert!(!page.contains("<script") && !page.contains('\u{1b}') && !page.contains('\u{7}'));
        assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("@import"));
        for failure in &report.failures {
            assert!(page.contains(&format!("<b>{}</b>", failure.place)));
            assert!(page.contains(&escape(&failure.cause)));
        }
        assert_eq!(
            page.matches("class='failure'>").count(),
            1 + report.failures.len()
        );
        for part in Part::ALL {
            assert!(
                page.contains(&format!("<rect class='{}'", part.name())),
                "{}",
                part.name()
            );
        }
        assert!(page.contains("What to do: look at the cause"));
        assert!(page.contains("version 22 could not be used"));
        assert_eq!(
            page.matches("<tr").count(),
            2 + 2 + 1 + told,
            "rows of tables"
        );
        well_formed(&page);
    }

    #[test]
    fn a_report_alone_and_one_that_has_just_begun_have_pages_too() {
        let (mut report, _) = sample();
        well_formed(&html(&Seen {
            report: report.clone(),
            run: None,
        }));
        report.hangs.push(HangEntry {
            version: Some(7),
            file: "<hang>-1.txt".to_owned(),
            ..HangEntry::default()
        });
        let hung = html(&Seen {
            report: report.clone(),
            run: None,
        });
        assert!(hung.contains("<h2>No progress</h2>") && hung.contains("&lt;hang&gt;-1.txt"));
        well_formed(&hung);
        let waits = Alike {
            command: "ssh <n3>".to_owned(),
            count: 1,
            does: "waiting in read".to_owned(),
            ..Alike::default()
        };
        report.hangs[0] = HangEntry {
            joining: true,
            processes: vec![waits],
            ..HangEntry::default()
        };
        let awaited = html(&Seen {
            report: report.clone(),
            run: None,
        });
        assert!(awaited.contains("no rank joined: ssh &lt;n3&gt; (0) waiting in read"));
        well_formed(&awaited);
        report.hangs.clear();
        report.failures.clear();
        report.incarnations.clear();
        report.seconds = 0.0;
        well_formed(&html(&Seen { report, run: None }));
    }

    /// Each element is closed where it was opened.
    fn well_formed(page: &str) {
        const EMPTY: [&str; 5] = ["!doctype", "meta", "br", "rect", "path"];
        let mut open: Vec<&str> = Vec::new();
        let mut rest = page;
        while let Some(at) = rest.find('<') {
            let tag = &rest[at + 1..];
            let end = tag.find('>').unwrap();
            let name = tag[..end].split([' ', '/', '\n']).next().unwrap();
            if let Some(closed) = tag.strip_prefix('/') {
                let closed = &closed[..end - 1];
                if open.last() == Some(&closed) {
                    open.pop();
                } else {
                    panic!("</{closed}> closes {open:?}");
                }
            } else if !tag[..end].ends_with('/') && !EMPTY[..3].contains(&name) {
                open.push(name);
            }
            rest = &tag[end + 1..];
        }
        assert!(open.is_empty(), "{open:?}");
    }
}
