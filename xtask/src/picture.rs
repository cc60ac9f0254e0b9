//! The picture of the table in the README: what a real terminal shows of the demo, as SVG.

use crate::compile::Profile;
use crate::{compile, place, shell};
use anyhow::{Context as _, Result, bail};
use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

/// The terminal's size, which the picture has.
const COLUMNS: usize = 92;
const ROWS: usize = 34;
/// A character's box, in pixels of the picture.
const WIDTH: usize = 8;
const HEIGHT: usize = 17;
/// The demo's last process is in the table by then.
const WITHIN: Duration = Duration::from_mins(1);
const LAST: &str = "ollama@";
/// A page shows it at once.
const MAX_BYTES: usize = 100_000;

/// `cargo xtask picture`: runs the demo in a terminal of tmux and writes what that shows.
pub(crate) fn picture() -> Result<()> {
    let demo = place::target(Profile::Debug.folder()).join("demo");
    if !demo.exists() {
        compile::demo()?;
    }
    let tmux = |words: &[&str]| {
        let words = ["-L", "gpuwho-picture"].iter().chain(words);
        shell::capture(&mut shell::program("tmux", words)).context("tmux (Debian's tmux)")
    };
    let (columns, rows) = (COLUMNS.to_string(), (ROWS + 8).to_string());
    let demo = demo.display().to_string();
    tmux(&["new-session", "-d", "-x", &columns, "-y", &rows, &demo])?;
    let end = Instant::now() + WITHIN;
    let shown = loop {
        let shown = tmux(&["capture-pane", "-p", "-e"])?;
        if shown.contains(LAST) || Instant::now() > end {
            break shown;
        }
        std::thread::sleep(Duration::from_millis(500));
    };
    // As Ctrl-C: the demo removes what it made. The session ends with it.
    tmux(&["send-keys", "C-c"])?;
    if !shown.contains(LAST) {
        bail!("the demo did not show every process:\n{shown}");
    }
    let table = shown.lines().skip_while(|line| !line.contains("processes on"));
    let svg = svg(&table.take(ROWS).collect::<Vec<_>>());
    if svg.len() > MAX_BYTES {
        bail!("the picture has {} bytes, more than {MAX_BYTES}", svg.len());
    }
    let path = place::root().join("agent/docs/gpuwho.svg");
    fs::write(&path, svg).with_context(|| format!("writing {}", path.display()))
}

/// Lines with SGR sequences (ECMA-48) as the lines of a picture.
fn svg(lines: &[&str]) -> String {
    let used = lines.iter().rposition(|line| !line.trim().is_empty()).map_or(0, |last| last + 1);
    let (width, height) = (COLUMNS * WIDTH + 2 * WIDTH, used * HEIGHT + HEIGHT);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"monospace\" font-size=\"13\" fill=\"#d0d0d0\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#1c1c1c\"/>\n"
    );
    for (line, row) in lines.iter().take(used).zip(1..) {
        text(&mut out, line, row * HEIGHT);
    }
    out.push_str("</svg>\n");
    out
}

/// Each run of one style is placed by its column, whatever a font's width is.
fn text(out: &mut String, line: &str, y: usize) {
    let (mut column, mut style) = (0, String::new());
    for (at, part) in line.split("\x1b[").enumerate() {
        let run = match part.split_once('m').filter(|_| at > 0) {
            Some((codes, rest)) => {
                style = styled(codes, &style);
                rest
            }
            None => part,
        };
        let (x, length) = (WIDTH + column * WIDTH, run.chars().count() * WIDTH);
        column += run.chars().count();
        if !run.trim().is_empty() {
            let run = run.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "<text x=\"{x}\" y=\"{y}\" textLength=\"{length}\" xml:space=\"preserve\"{style}>{run}</text>"
            );
        }
    }
}

/// The attributes of a run behind these codes.
fn styled(codes: &str, before: &str) -> String {
    codes.split(';').fold(before.to_owned(), |style, code| match code {
        "1" => style + " font-weight=\"bold\"",
        "2" => style + " fill-opacity=\"0.6\"",
        "31" | "91" => style + " fill=\"#ff6b6b\"",
        "32" | "92" => style + " fill=\"#7bd88f\"",
        "33" | "93" => style + " fill=\"#fce566\"",
        "36" | "96" => style + " fill=\"#5ad4e6\"",
        "" | "0" | "39" => String::new(),
        _ => style,
    })
}

#[cfg(test)]
mod tests {
    use super::svg;

    #[test]
    fn runs_keep_their_columns_and_colours_and_no_markup_of_theirs() {
        let picture = svg(&["ab \x1b[1;32mok\x1b[0m <c>", "", ""]);
        let texts: Vec<&str> = picture.lines().filter(|line| line.starts_with("<text")).collect();
        assert_eq!(
            texts,
            [
                "<text x=\"8\" y=\"17\" textLength=\"24\" xml:space=\"preserve\">ab </text>",
                "<text x=\"32\" y=\"17\" textLength=\"16\" xml:space=\"preserve\" \
                 font-weight=\"bold\" fill=\"#7bd88f\">ok</text>",
                "<text x=\"48\" y=\"17\" textLength=\"32\" xml:space=\"preserve\"> &lt;c&gt;</text>",
            ]
        );
    }
}
