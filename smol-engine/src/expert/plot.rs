//! Draws miss rate and speed against the size of the pool, as SVG.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

/// What is drawn.
///
/// ```
/// use smol_engine::expert::plot::{Line, Plot, Point};
///
/// let point = |slots, miss_rate| Point { slots, miss_rate, tokens_per_second: Some(9.0) };
/// let line = Line { name: "lru".into(), points: vec![point(8, 0.5), point(16, 0.2)], bound: false };
/// let plot = Plot { title: "moe".into(), experts: 48, lines: vec![line] };
/// assert!(plot.svg().starts_with("<svg"));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// What stands above.
    pub title: String,
    /// Experts of a layer.
    pub experts: u32,
    /// A line for each policy.
    pub lines: Vec<Line>,
}

/// How one policy does.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Name of the policy.
    pub name: String,
    /// The points, by size of the pool.
    pub points: Vec<Point>,
    /// Whether it is a limit that others cannot reach, which is drawn dashed.
    pub bound: bool,
}

/// How one policy does with one size of the pool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Experts of a layer that are in memory.
    pub slots: u32,
    /// Share of the choices that are misses, 0 to 1.
    pub miss_rate: f64,
    /// Speed. `None`: the flash or the machine is not known.
    pub tokens_per_second: Option<f64>,
}

impl Point {
    fn speed(&self) -> Option<f64> {
        self.tokens_per_second.filter(|speed| speed.is_finite())
    }
}

const WIDTH: f64 = 720.0;
/// Where the panels start and end from left to right.
const LEFT: f64 = 64.0;
const RIGHT: f64 = WIDTH - 20.0;
/// What is above the panels: title and legend.
const HEAD: f64 = 64.0;
const PANEL: f64 = 220.0;
/// Between panels, and below the last: room for the axis.
const GAP: f64 = 56.0;
/// Room for a label of the axis from left to right.
const LABEL: f64 = 32.0;
/// Most labels of the other axis.
const MOST_TICKS: f64 = 8.0;

/// Colours that people with any colour vision tell apart (Okabe and Ito), for light and dark.
const COLOURS: [[&str; 2]; 6] = [
    ["#0072b2", "#56b4e9"],
    ["#b35c00", "#e69f00"],
    ["#00785a", "#2ec4a0"],
    ["#a8487d", "#e08bbd"],
    ["#57606a", "#b1bac4"],
    ["#8a7a00", "#f0e442"],
];

/// One of the diagrams.
#[derive(Clone, Copy)]
struct Panel {
    label: &'static str,
    top: f64,
    value: fn(&Point) -> Option<f64>,
}

/// A linear axis from 0 up.
#[derive(Clone, Copy)]
struct Axis {
    high: f64,
    step: f64,
}

impl Axis {
    /// To a round number that is no less than `most`.
    fn to(most: f64) -> Self {
        let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
        let step = round_step(most);
        Self { high: (most / step - 1e-9).ceil() * step, step }
    }

    fn ticks(self) -> impl Iterator<Item = f64> {
        let steps = (self.high / self.step).round() as u32;
        (0..=steps).map(move |i| f64::from(i) * self.step)
    }

    /// A value as a label: no more digits than the steps need.
    fn label(self, value: f64) -> String {
        let digits = (-self.step.log10().floor()).max(0.0) as usize;
        let digits = digits + usize::from((self.step * 10_f64.powi(digits as i32)).fract() > 1e-9);
        format!("{value:.digits$}")
    }
}

/// Returns 1, 2, 2.5 or 5 times a power of ten that divides `range` into few steps.
fn round_step(range: f64) -> f64 {
    let least = range / MOST_TICKS;
    let power = 10_f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0].into_iter().find(|step| step * power >= least);
    step.unwrap_or(10.0) * power
}

impl Plot {
    /// Draws the plot: the miss rate, and below it the speed if it is known.
    ///
    /// The result has its own background and follows the reader's preference for light or dark.
    pub fn svg(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut out);
        out
    }

    fn points(&self) -> impl Iterator<Item = &Point> + Clone {
        self.lines.iter().flat_map(|line| &line.points)
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let miss_rate =
            Panel { label: "misses, %", top: HEAD, value: |point| Some(point.miss_rate * 100.0) };
        let speed = Panel { label: "tokens/s", top: HEAD + PANEL + GAP, value: Point::speed };
        let mut panels = vec![miss_rate];
        if self.points().any(|point| (speed.value)(point).is_some()) {
            panels.push(speed);
        }
        let height = HEAD + panels.len() as f64 * (PANEL + GAP);
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             width=\"{WIDTH}\" height=\"{height}\" role=\"img\">"
        )?;
        let title = escaped(&self.title);
        writeln!(out, "<title>{title}</title>")?;
        self.write_style(out)?;
        writeln!(out, "<rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>")?;
        writeln!(out, "<text class=\"title\" x=\"{LEFT}\" y=\"24\">{title}</text>")?;
        self.write_legend(out)?;
        let sizes: BTreeSet<u32> = self.points().map(|point| point.slots).collect();
        for panel in panels {
            self.write_panel(panel, &sizes, out)?;
        }
        writeln!(out, "</svg>")
    }

    fn write_style(&self, out: &mut String) -> fmt::Result {
        let colours = |scheme: usize, out: &mut String| {
            (0..COLOURS.len()).try_for_each(|i| {
                let colour = COLOURS[i][scheme];
                writeln!(out, ".s{i}{{stroke:{colour}}} .s{i} circle{{fill:{colour}}}")
            })
        };
        writeln!(out, "<style>")?;
        writeln!(out, "text{{font:13px system-ui,sans-serif;fill:#1f2328;stroke:none}}")?;
        writeln!(out, ".title{{font-size:15px;font-weight:600}}")?;
        writeln!(out, ".paper{{fill:#ffffff}} .grid{{stroke:#d8dee4}} .axis{{stroke:#57606a}}")?;
        writeln!(out, ".end{{text-anchor:end}} .middle{{text-anchor:middle}}")?;
        writeln!(out, "polyline{{fill:none;stroke-width:2;stroke-linejoin:round}}")?;
        writeln!(out, ".bound polyline{{stroke-dasharray:6 4}} circle{{stroke:none}}")?;
        colours(0, out)?;
        writeln!(out, "@media (prefers-color-scheme:dark){{")?;
        writeln!(out, "text{{fill:#e6edf3}} .paper{{fill:#0d1117}}")?;
        writeln!(out, ".grid{{stroke:#30363d}} .axis{{stroke:#8b949e}}")?;
        colours(1, out)?;
        writeln!(out, "}}")?;
        writeln!(out, "</style>")
    }

    fn write_legend(&self, out: &mut String) -> fmt::Result {
        let mut x = LEFT;
        for (i, line) in self.lines.iter().enumerate() {
            writeln!(out, "<g class=\"{}\">", class(i, line))?;
            writeln!(out, "<polyline points=\"{x},44 {},44\"/>", x + 24.0)?;
            writeln!(out, "<text x=\"{}\" y=\"48\">{}</text></g>", x + 30.0, escaped(&line.name))?;
            x += 54.0 + 7.5 * line.name.chars().count() as f64;
        }
        Ok(())
    }

    fn write_panel(&self, panel: Panel, sizes: &BTreeSet<u32>, out: &mut String) -> fmt::Result {
        let Panel { label, top, value } = panel;
        let bottom = top + PANEL;
        let y = Axis::to(self.points().filter_map(value).fold(0.0, f64::max));
        let (low, high) = (sizes.first().copied().unwrap_or(0), sizes.last().copied().unwrap_or(0));
        let at_x = |slots: u32| match high - low {
            0 => f64::midpoint(LEFT, RIGHT),
            range => LEFT + f64::from(slots - low) / f64::from(range) * (RIGHT - LEFT),
        };
        let at_y = |value: f64| bottom - value / y.high * PANEL;
        for tick in y.ticks() {
            let (height, label) = (at_y(tick), y.label(tick));
            writeln!(
                out,
                "<path class=\"grid\" d=\"M{LEFT} {height:.1}H{RIGHT}\"/>\
                 <text class=\"end\" x=\"{}\" y=\"{:.1}\">{label}</text>",
                LEFT - 8.0,
                height + 4.5
            )?;
        }
        writeln!(out, "<path class=\"axis\" d=\"M{LEFT} {bottom}H{RIGHT}\"/>")?;
        let mut free = 0.0;
        for &size in sizes {
            let at = at_x(size);
            if at >= free {
                free = at + LABEL;
                writeln!(
                    out,
                    "<path class=\"axis\" d=\"M{at:.1} {bottom}v5\"/>\
                     <text class=\"middle\" x=\"{at:.1}\" y=\"{}\">{size}</text>",
                    bottom + 20.0
                )?;
            }
        }
        let middle = f64::midpoint(top, bottom);
        writeln!(
            out,
            "<text class=\"middle\" transform=\"translate(18 {middle}) rotate(-90)\">{label}</text>"
        )?;
        writeln!(
            out,
            "<text class=\"middle\" x=\"{}\" y=\"{}\">experts of each layer in memory, of {}</text>",
            f64::midpoint(LEFT, RIGHT),
            bottom + 40.0,
            self.experts
        )?;
        for (i, line) in self.lines.iter().enumerate() {
            let points = line.points.iter().filter_map(|point| Some((point, value(point)?)));
            let at = |slots: u32, value: f64| (at_x(slots), at_y(value));
            write!(out, "<g class=\"{}\"><polyline points=\"", class(i, line))?;
            for (point, value) in points.clone() {
                let (x, y) = at(point.slots, value);
                write!(out, "{x:.1},{y:.1} ")?;
            }
            writeln!(out, "\"/>")?;
            for (point, value) in points {
                let (x, y) = at(point.slots, value);
                write!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"><title>")?;
                write!(
                    out,
                    "{}, {}: {:.1} % misses",
                    escaped(&line.name),
                    point.slots,
                    point.miss_rate * 100.0
                )?;
                if let Some(speed) = point.speed() {
                    write!(out, ", {speed:.2} tokens/s")?;
                }
                writeln!(out, "</title></circle>")?;
            }
            writeln!(out, "</g>")?;
        }
        Ok(())
    }
}

fn class(i: usize, line: &Line) -> String {
    let bound = if line.bound { " bound" } else { "" };
    format!("s{}{bound}", i % COLOURS.len())
}

/// Text for XML, without characters that XML cannot hold.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests;
