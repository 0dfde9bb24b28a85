//! Lines of text that have colours and a width.

/// How a piece of text looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    Usual,
    Strong,
    Dim,
    Good,
    Bad,
    Warn,
}

impl Tone {
    const fn code(self) -> &'static str {
        match self {
            Tone::Usual => "",
            Tone::Strong => "\x1b[1m",
            Tone::Dim => "\x1b[2m",
            Tone::Good => "\x1b[32m",
            Tone::Bad => "\x1b[31m",
            Tone::Warn => "\x1b[33m",
        }
    }
}

/// A line in pieces.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Line(Vec<(Tone, String)>);

impl Line {
    pub fn of(tone: Tone, text: impl Into<String>) -> Line {
        Line(vec![(tone, text.into())])
    }

    pub fn and(mut self, tone: Tone, text: impl Into<String>) -> Line {
        self.0.push((tone, text.into()));
        self
    }

    pub fn width(&self) -> usize {
        self.0.iter().map(|(_, text)| text.chars().count()).sum()
    }

    /// The line, cut to a width; nothing in it moves the cursor.
    pub fn show(&self, width: usize, colour: bool) -> String {
        let mut out = String::new();
        let mut left = width;
        for (tone, text) in &self.0 {
            let whole = plain(text);
            let mut text: String = whole.chars().take(left).collect();
            left -= text.chars().count();
            if left == 0 && whole.chars().count() > text.chars().count() && text.pop().is_some() {
                text.push('>');
            }
            let code = if colour { tone.code() } else { "" };
            let end = if code.is_empty() { "" } else { "\x1b[0m" };
            out += &format!("{code}{text}{end}");
        }
        out.trim_end().to_owned()
    }
}

/// The room that there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    pub width: usize,
    /// `usize::MAX`: as much as is needed.
    pub height: usize,
    /// The first of the nodes that do not all have room.
    pub scroll: usize,
}

/// A column of a table.
pub struct Column {
    pub name: String,
    pub cells: Vec<(Tone, String)>,
    /// The larger, the earlier it goes when there is no room for all; 0: never.
    pub goes: u8,
    pub right: bool,
}

impl Column {
    pub fn width(&self) -> usize {
        let cells = self.cells.iter().map(|(_, text)| text.chars().count());
        cells.chain([self.name.chars().count()]).max().unwrap_or(0)
    }
}

/// A row of a table.
pub fn row(columns: &[Column], cell: impl Fn(&Column) -> (Tone, String)) -> Line {
    let mut line = Line::default();
    for (at, column) in columns.iter().enumerate() {
        let (tone, text) = cell(column);
        let width = column.width();
        let gap = if at == 0 { "" } else { "  " };
        let text = match column.right {
            true => format!("{gap}{text:>width$}"),
            false => format!("{gap}{text:<width$}"),
        };
        line = line.and(tone, text);
    }
    line
}

/// Words in lines of at most this width; one that is longer has a line of its own.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let indent = text.len() - text.trim_start().len();
    let mut lines = vec![text[..indent].to_owned()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().map(|line| {
            let blank = line.trim().is_empty();
            let wide = line.chars().count() + usize::from(!blank) + word.chars().count();
            (wide <= width || blank, line)
        });
        match last {
            Some((true, line)) => {
                if !line.trim().is_empty() {
                    line.push(' ');
                }
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// What comes from files and programs moves no cursor and turns no direction.
pub fn plain(text: &str) -> String {
    let turns = |letter: char| matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let safe = |letter: char| match letter.is_control() || turns(letter) {
        true => ' ',
        false => letter,
    };
    text.chars().map(safe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_moves_nothing() {
        assert_eq!(plain("a\u{1b}[2Jb\u{202e}c\u{2069}"), "a [2Jb c ");
    }

    #[test]
    fn colour_is_left_out_when_it_is_not_wanted() {
        let line = Line::of(Tone::Bad, "lost");
        assert_eq!(line.show(80, true), "\x1b[31mlost\x1b[0m");
        assert_eq!(line.show(80, false), "lost");
    }
}
