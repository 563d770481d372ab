//! Draws boxes, lines, arrows, braces and words as SVG, for a light and a dark page.
//!
//! All lengths are pixels of a picture that is [`WIDTH`] wide. The text is the same for each call: numbers
//! are integers, and elements come in the order of the calls.

use std::fmt::Write as _;

use crate::svg::escaped;

/// The width of each picture.
pub(crate) const WIDTH: i32 = 760;

/// The space between two lines of words in a box.
const LINE: i32 = 16;

/// The colours of the page and of the words. Readers of either kind see one of the two.
const STYLE: &str = "\
text{font:13px system-ui,sans-serif;fill:#1f2328}\
.small{font-size:12px}\
.muted{fill:#59636e}\
.head{font-size:14px;font-weight:600}\
.middle{text-anchor:middle}\
.end{text-anchor:end}\
.code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.92em}\
.line{fill:none;stroke:#59636e;stroke-width:1.3}\
.tip{fill:#59636e;stroke:none}\
.dashes{stroke-dasharray:4 3}\
rect{stroke-width:1.3}\
.plain{fill:#f6f8fa;stroke:#818b98}\
.data{fill:#ddf4ff;stroke:#0969da}\
.new{fill:#dafbe1;stroke:#1a7f37}\
.index{fill:#fff1c2;stroke:#9a6700}\
.record{fill:#f5e6ff;stroke:#8250df}\
.wrong{fill:#ffebe9;stroke:#cf222e}\
.unused{fill:url(#hatch);stroke:#818b98}\
.absent{fill:none;stroke:#818b98;stroke-dasharray:4 3}\
.hatch{stroke:#b7bfc8;stroke-width:1.5}\
@media (prefers-color-scheme:dark){\
text{fill:#e6edf3}\
.muted{fill:#9da7b1}\
.line{stroke:#9da7b1}\
.tip{fill:#9da7b1}\
.plain{fill:#1c2128;stroke:#768390}\
.data{fill:#0c2a4a;stroke:#4493f8}\
.new{fill:#10331d;stroke:#3fb950}\
.index{fill:#3b2e0a;stroke:#d29922}\
.record{fill:#2f1f4d;stroke:#ab7df8}\
.wrong{fill:#4a1a1a;stroke:#f85149}\
.unused{stroke:#768390}\
.absent{stroke:#768390}\
.hatch{stroke:#4a525c}}";

/// The fill of unused bytes.
const HATCH: &str = "<pattern id=\"hatch\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" \
    patternTransform=\"rotate(45)\"><path class=\"hatch\" d=\"M3.5 0V7\"/></pattern>";

/// The kind of thing that a box stands for, which has the same colour in all pictures.
#[derive(Clone, Copy)]
pub(crate) enum Tone {
    Plain,
    /// Stored data.
    Data,
    /// Data that is being written.
    New,
    Index,
    Record,
    /// An error.
    Wrong,
    /// Bytes that nothing uses.
    Unused,
    /// A thing that is not there: an outline of dashes.
    Absent,
}

impl Tone {
    fn class(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Data => "data",
            Self::New => "new",
            Self::Index => "index",
            Self::Record => "record",
            Self::Wrong => "wrong",
            Self::Unused => "unused",
            Self::Absent => "absent",
        }
    }
}

/// The weight of words.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    Heading,
    Normal,
    Small,
    /// Small, and less visible.
    Note,
}

/// The part of the words that is at their position.
#[derive(Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A rectangle: its left upper corner, width and height.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) x: i32,
    pub(crate) y: i32,
    pub(crate) w: i32,
    pub(crate) h: i32,
}

/// Returns the rectangle with the left upper corner (`x`, `y`), the width `w` and the height `h`.
pub(crate) fn area(x: i32, y: i32, w: i32, h: i32) -> Area {
    Area { x, y, w, h }
}

impl Area {
    pub(crate) fn right(self) -> i32 {
        self.x + self.w
    }

    pub(crate) fn bottom(self) -> i32 {
        self.y + self.h
    }

    pub(crate) fn middle(self) -> i32 {
        self.x + self.w / 2
    }

    fn overlaps(self, other: Self) -> bool {
        self.x < other.right()
            && other.x < self.right()
            && self.y < other.bottom()
            && other.y < self.bottom()
    }

    fn has(self, other: Self) -> bool {
        other.x >= self.x
            && other.right() <= self.right()
            && other.y >= self.y
            && other.bottom() <= self.bottom()
    }
}

/// Words, and the room that they may take.
struct Words {
    text: String,
    at: Area,
    within: Area,
}

/// A picture.
pub(crate) struct Drawing {
    height: i32,
    title: &'static str,
    description: &'static str,
    body: String,
    words: Vec<Words>,
}

impl Drawing {
    /// Returns an empty picture. Screen readers read `title` and `description`.
    pub(crate) fn new(height: i32, title: &'static str, description: &'static str) -> Self {
        Self {
            height,
            title,
            description,
            body: String::new(),
            words: Vec::new(),
        }
    }

    /// Draws a box.
    pub(crate) fn area(&mut self, area: Area, tone: Tone) {
        let Area { x, y, w, h } = area;
        let class = tone.class();
        self.push(format_args!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" rx=\"3\"/>"
        ));
    }

    /// Draws a box with lines of words in its middle. Words between backticks are code.
    pub(crate) fn block(&mut self, at: Area, tone: Tone, lines: &[&str]) {
        self.block_of(at, tone, Weight::Normal, lines);
    }

    /// Draws a box with small words.
    pub(crate) fn small_block(&mut self, at: Area, tone: Tone, lines: &[&str]) {
        self.block_of(at, tone, Weight::Small, lines);
    }

    fn block_of(&mut self, at: Area, tone: Tone, weight: Weight, lines: &[&str]) {
        self.area(at, tone);
        let below = i32::try_from(lines.len()).unwrap_or(1) - 1;
        let mut y = at.y + at.h / 2 + 5 - below * LINE / 2;
        for line in lines {
            self.words_within(at, (at.middle(), y), weight, Anchor::Middle, line);
            y += LINE;
        }
    }

    /// Writes words at a position, whose second number is their base line.
    pub(crate) fn words(&mut self, at: (i32, i32), weight: Weight, anchor: Anchor, words: &str) {
        let page = area(4, 4, WIDTH - 8, self.height - 8);
        self.words_within(page, at, weight, anchor, words);
    }

    /// Writes a heading, from `x` to the right.
    pub(crate) fn heading(&mut self, x: i32, y: i32, words: &str) {
        self.words((x, y), Weight::Heading, Anchor::Start, words);
    }

    /// Writes small words, from `x` to the right.
    pub(crate) fn note(&mut self, x: i32, y: i32, words: &str) {
        self.words((x, y), Weight::Note, Anchor::Start, words);
    }

    /// Writes small words around `x`.
    pub(crate) fn note_around(&mut self, x: i32, y: i32, words: &str) {
        self.words((x, y), Weight::Note, Anchor::Middle, words);
    }

    fn words_within(
        &mut self,
        within: Area,
        (x, y): (i32, i32),
        weight: Weight,
        anchor: Anchor,
        words: &str,
    ) {
        let (size, mut classes) = match weight {
            Weight::Heading => (16, vec!["head"]),
            Weight::Normal => (13, vec![]),
            Weight::Small => (12, vec!["small"]),
            Weight::Note => (12, vec!["small", "muted"]),
        };
        // Words of a heading are wider than others of their size.
        let width = width(words, size);
        let left = match anchor {
            Anchor::Start => x,
            Anchor::Middle => x - width / 2,
            Anchor::End => x - width,
        };
        match anchor {
            Anchor::Start => {}
            Anchor::Middle => classes.push("middle"),
            Anchor::End => classes.push("end"),
        }
        self.words.push(Words {
            text: words.to_string(),
            at: area(left, y - size + 3, width, size),
            within,
        });
        let class = match classes.as_slice() {
            [] => String::new(),
            classes => format!(" class=\"{}\"", classes.join(" ")),
        };
        let words = with_code(words);
        self.push(format_args!(
            "<text{class} x=\"{x}\" y=\"{y}\">{words}</text>"
        ));
    }

    /// Draws lines from point to point.
    pub(crate) fn line(&mut self, points: &[(i32, i32)]) {
        self.path("line", points);
    }

    /// Draws lines of dashes from point to point.
    pub(crate) fn dashes(&mut self, points: &[(i32, i32)]) {
        self.path("line dashes", points);
    }

    /// Draws lines from point to point, the last of which is the tip of an arrow.
    pub(crate) fn arrow(&mut self, points: &[(i32, i32)]) {
        self.line(points);
        self.tip(points);
    }

    /// Draws an arrow of dashes.
    pub(crate) fn dashed_arrow(&mut self, points: &[(i32, i32)]) {
        self.dashes(points);
        self.tip(points);
    }

    /// Draws an arrow with a tip at each of its two ends.
    pub(crate) fn arrow_of_two_tips(&mut self, from: (i32, i32), to: (i32, i32)) {
        self.arrow(&[from, to]);
        self.tip(&[to, from]);
    }

    /// Draws a tip at the last of `points`. The last line is horizontal or vertical.
    fn tip(&mut self, points: &[(i32, i32)]) {
        let [.., (from_x, from_y), (x, y)] = *points else {
            return;
        };
        let (dx, dy) = ((x - from_x).signum(), (y - from_y).signum());
        // The tip is 7 long and 8 wide.
        let (back_x, back_y) = (x - 7 * dx, y - 7 * dy);
        let (side_x, side_y) = (4 * dy, 4 * dx);
        self.push(format_args!(
            "<path class=\"tip\" d=\"M{x} {y}L{} {}L{} {}Z\"/>",
            back_x + side_x,
            back_y + side_y,
            back_x - side_x,
            back_y - side_y
        ));
    }

    fn path(&mut self, class: &str, points: &[(i32, i32)]) {
        let mut path = String::new();
        for (n, (x, y)) in points.iter().enumerate() {
            let command = if n == 0 { 'M' } else { 'L' };
            // Writing to a string cannot fail.
            let _ = write!(path, "{command}{x} {y}");
        }
        self.push(format_args!("<path class=\"{class}\" d=\"{path}\"/>"));
    }

    /// Draws a brace over the range from `left` to `right`, whose point is at `y`. The brace opens downwards,
    /// or upwards if `upwards`.
    pub(crate) fn brace(&mut self, (left, right): (i32, i32), y: i32, upwards: bool) {
        let (middle, side) = (left.midpoint(right), if upwards { -1 } else { 1 });
        let (waist, ends) = (y + 5 * side, y + 10 * side);
        self.push(format_args!(
            "<path class=\"line\" d=\"M{left} {ends}Q{left} {waist} {} {waist}H{}Q{middle} {waist} {middle} {y}\
             Q{middle} {waist} {} {waist}H{}Q{right} {waist} {right} {ends}\"/>",
            left + 5,
            middle - 5,
            middle + 5,
            right - 5
        ));
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.body, "{element}");
    }

    /// Returns the picture as SVG.
    pub(crate) fn to_svg(&self) -> String {
        let Self {
            height,
            title,
            description,
            body,
            ..
        } = self;
        let (title, description) = (escaped(title), escaped(description));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"title description\">\n\
             <title id=\"title\">{title}</title>\n\
             <desc id=\"description\">{description}</desc>\n\
             <style>{STYLE}</style>\n\
             <defs>{HATCH}</defs>\n\
             {body}</svg>\n"
        )
    }

    /// Returns a complaint about words that leave their room, or overlap other words.
    pub(crate) fn misfits(&self) -> Vec<String> {
        let mut misfits = Vec::new();
        for (n, words) in self.words.iter().enumerate() {
            if !words.within.has(words.at) {
                misfits.push(format!(
                    "{:?} leaves {:?}: {:?}",
                    words.text, words.within, words.at
                ));
            }
            for other in &self.words[..n] {
                if words.at.overlaps(other.at) {
                    misfits.push(format!("{:?} overlaps {:?}", words.text, other.text));
                }
            }
        }
        misfits
    }
}

/// Returns the pixels that `words` take in the font `DejaVu Sans`, which is wider than most fonts of systems.
fn width(words: &str, size: i32) -> i32 {
    let mut sum = 0;
    for (n, part) in words.split('`').enumerate() {
        sum += part
            .chars()
            .map(|c| thousandths(c, n % 2 == 1))
            .sum::<i32>();
    }
    (sum * size).div_euclid(1000) + 1
}

/// Returns the width of `c` in thousandths of the size of the font.
fn thousandths(c: char, code: bool) -> i32 {
    match c {
        _ if code => 560,
        ' ' | '.' | ',' | ':' | ';' | 'i' | 'j' | 'l' | 'I' | 't' | 'f' | '(' | ')' | '\'' => 330,
        'm' | 'w' | 'M' | 'W' | '→' => 900,
        'A'..='Z' => 690,
        _ => 615,
    }
}

/// Returns `words` as XML, whose parts between backticks are code.
fn with_code(words: &str) -> String {
    let mut xml = String::new();
    for (n, part) in words.split('`').enumerate() {
        let part = escaped(part);
        if n % 2 == 1 {
            let _ = write!(xml, "<tspan class=\"code\">{part}</tspan>");
        } else {
            xml.push_str(&part);
        }
    }
    xml
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture() -> Drawing {
        Drawing::new(100, "a & b", "a < b")
    }

    #[test]
    fn words_are_escaped_and_code_is_marked() {
        let mut picture = picture();
        picture.note(10, 20, "a < `b & c`");
        let svg = picture.to_svg();
        assert!(
            svg.contains("<title id=\"title\">a &amp; b</title>"),
            "{svg}"
        );
        let words = ">a &lt; <tspan class=\"code\">b &amp; c</tspan></text>";
        assert!(svg.contains(words), "{svg}");
    }

    #[test]
    fn misfits_are_found() {
        let mut picture = picture();
        picture.block(area(10, 10, 80, 20), Tone::Plain, &["fits"]);
        assert_eq!(picture.misfits(), Vec::<String>::new());
        picture.block(area(10, 50, 20, 20), Tone::Plain, &["does not fit"]);
        picture.note(700, 90, "leaves the page");
        picture.note(45, 22, "overlaps");
        assert_eq!(picture.misfits().len(), 3, "{:?}", picture.misfits());
    }

    #[test]
    fn arrows_end_in_tips() {
        let mut picture = picture();
        picture.arrow(&[(0, 50), (100, 50)]);
        assert!(picture.to_svg().contains("M100 50L93 54L93 46Z"));
    }
}
