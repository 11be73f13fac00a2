//! Just enough SVG: shapes that take their colours from the page's variables, scales and ticks.

use super::html::esc;

/// Colours that the style sheet names.
pub(crate) const COLORS: usize = 6;
/// Shapes of markers.
const SHAPES: usize = 8;

/// How an arm is drawn, so that colour is never the only sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Grey and dashed.
    Vanilla,
    /// By its number among drafting arms: no two of 24 are the same.
    Arm(usize),
    /// The colour of emphasis, for plots of one kind of bar.
    Plain,
}

impl Look {
    pub(crate) fn class(self) -> String {
        match self {
            Self::Vanilla => "cv".into(),
            Self::Plain => "cp".into(),
            Self::Arm(idx) => format!("c{}", idx % COLORS),
        }
    }

    fn dash(self) -> &'static str {
        match self {
            Self::Vanilla => " stroke-dasharray=\"5 4\"",
            Self::Arm(idx) if idx >= COLORS => " stroke-dasharray=\"8 3\"",
            _ => "",
        }
    }

    /// A marker around the origin, about 9 wide.
    fn shape(self) -> &'static str {
        let idx = match self {
            // A ring, which the style sheet leaves empty.
            Self::Vanilla | Self::Plain => 0,
            Self::Arm(idx) => idx % SHAPES,
        };
        match idx {
            0 => "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
            1 => "M-3.6,-3.6h7.2v7.2h-7.2z",
            2 => "M0,-4.8L4.6,3.6H-4.6z",
            3 => "M0,-5.2L4.6,0L0,5.2L-4.6,0z",
            4 => "M0,4.8L4.6,-3.6H-4.6z",
            5 => {
                "M-4.4,-2L-2,-4.4L0,-2.4L2,-4.4L4.4,-2L2.4,0L4.4,2L2,4.4L0,2.4L-2,4.4L-4.4,2L-2.4,0z"
            }
            6 => "M-1.6,-4.8h3.2v3.2h3.2v3.2h-3.2v3.2h-3.2v-3.2h-3.2v-3.2h3.2z",
            _ => "M0,-5L1.4,-1.6L5,-1.4L2.2,0.9L3.1,4.4L0,2.4L-3.1,4.4L-2.2,0.9L-5,-1.4L-1.4,-1.6z",
        }
    }

    /// A line with its marker, for a legend beside the drawing.
    pub(crate) fn swatch(self) -> String {
        format!(
            "<svg class=\"swatch {}\" viewBox=\"0 0 28 12\" width=\"28\" height=\"12\" aria-hidden=\"true\"><path class=\"ln\" d=\"M1,6H27\"{}/><path class=\"mk\" d=\"{}\" transform=\"translate(14 6)\"/></svg>",
            self.class(),
            self.dash(),
            self.shape()
        )
    }
}

/// Where a text stands relative to its point.
#[derive(Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A drawing in the making.
pub(crate) struct Canvas {
    body: String,
    width: f64,
    height: f64,
}

impl Canvas {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self {
            body: String::new(),
            width,
            height,
        }
    }

    fn put(&mut self, text: &str) {
        self.body.push_str(text);
    }

    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        self.put(&format!(
            "<path class=\"{class}\" d=\"M{},{}L{},{}\"/>",
            px(from.0),
            px(from.1),
            px(to.0),
            px(to.1)
        ));
    }

    /// `size` is never below 0.
    pub(crate) fn rect(&mut self, at: (f64, f64), size: (f64, f64), class: &str) {
        self.put(&format!(
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
            px(at.0),
            px(at.1),
            px(size.0.max(0.0)),
            px(size.1.max(0.0))
        ));
    }

    pub(crate) fn text(&mut self, at: (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.put(&format!(
            "<text class=\"{class}\" x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            px(at.0),
            px(at.1),
            esc(text)
        ));
    }

    /// Text that runs upwards.
    pub(crate) fn upright(&mut self, at: (f64, f64), class: &str, text: &str) {
        self.put(&format!(
            "<text class=\"{class}\" text-anchor=\"middle\" transform=\"translate({} {}) rotate(-90)\">{}</text>",
            px(at.0),
            px(at.1),
            esc(text)
        ));
    }

    /// A broken line through points; nothing for fewer than 2.
    pub(crate) fn polyline(&mut self, points: &[(f64, f64)], look: Look) {
        if points.len() < 2 {
            return;
        }
        let d: String = points
            .iter()
            .enumerate()
            .map(|(i, (x, y))| format!("{}{},{}", if i == 0 { 'M' } else { 'L' }, px(*x), px(*y)))
            .collect();
        self.put(&format!("<path class=\"ln\" d=\"{d}\"{}/>", look.dash()));
    }

    /// A marker that says its numbers when pointed at.
    pub(crate) fn marker(&mut self, at: (f64, f64), look: Look, says: &str) {
        self.put(&format!(
            "<path class=\"mk\" d=\"{}\" transform=\"translate({} {})\"><title>{}</title></path>",
            look.shape(),
            px(at.0),
            px(at.1),
            esc(says)
        ));
    }

    /// Begins a group of one look and, if it belongs to an arm, the arm's name for filters.
    pub(crate) fn open(&mut self, look: Look, arm: Option<&str>) {
        let arm = arm.map_or_else(String::new, |arm| super::html::attr("data-method", arm));
        self.put(&format!("<g class=\"{}\"{arm}>", look.class()));
    }

    pub(crate) fn close(&mut self) {
        self.put("</g>");
    }

    /// The drawing; `id` is one that no other on the page has.
    pub(crate) fn finish(self, id: &str, title: &str, desc: &str) -> String {
        format!(
            "<svg class=\"plot\" role=\"img\" viewBox=\"0 0 {} {}\" aria-labelledby=\"{id}-t {id}-d\"><title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>{}</svg>",
            px(self.width),
            px(self.height),
            esc(title),
            esc(desc),
            self.body
        )
    }
}

/// A tenth of a pixel is enough.
fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    let text = text.strip_suffix(".0").unwrap_or(&text);
    match text {
        "-0" => "0".into(),
        text => text.to_owned(),
    }
}

/// From numbers to pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) pixels: (f64, f64),
    pub(crate) step: Step,
}

/// What an equal way on an axis means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// An equal difference.
    Even,
    /// An equal ratio; numbers are above 0.
    Doubling,
}

impl Scale {
    pub(crate) fn at(&self, value: f64) -> f64 {
        let place = |v: f64| match self.step {
            Step::Even => v,
            Step::Doubling => v.log2(),
        };
        let (low, high) = (place(self.low), place(self.high));
        let share = match high > low {
            true => (place(value) - low) / (high - low),
            false => 0.5,
        };
        self.pixels.0 + share * (self.pixels.1 - self.pixels.0)
    }
}

/// Round numbers that span `low` to `high`, about `n` of them: the first is not above `low`, the last not below
/// `high`.
pub(crate) fn ticks(low: f64, high: f64, n: usize) -> Vec<f64> {
    let width = (high - low).max(1e-9) / n.max(1) as f64;
    let power = 10f64.powf(width.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .map(|s| s * power)
        .into_iter()
        .find(|step| *step >= width * 0.999)
        .unwrap_or(10.0 * power);
    let (from, to) = (
        (low / step).floor() as i64,
        (high / step - 1e-9).ceil() as i64,
    );
    (from..=to).map(|i| i as f64 * step).collect()
}

/// A tick's number with as many places as its neighbours need.
pub(crate) fn tick(value: f64, ticks: &[f64]) -> String {
    let step = ticks
        .windows(2)
        .map(|w| w[1] - w[0])
        .fold(f64::MAX, f64::min);
    let places = (0..4)
        .find(|places| {
            let scaled = step * 10f64.powi(*places);
            (scaled - scaled.round()).abs() < 1e-6
        })
        .unwrap_or(4);
    format!("{value:.*}", places as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_span_the_values() {
        assert_eq!(ticks(0.0, 5.3, 5), [0.0, 2.0, 4.0, 6.0]);
        assert_eq!(ticks(0.0, 1.0, 4), [0.0, 0.25, 0.5, 0.75, 1.0]);
        assert_eq!(ticks(0.0, 2400.0, 4), [0.0, 1000.0, 2000.0, 3000.0]);
        assert_eq!(tick(0.5, &[0.0, 0.25, 0.5]), "0.50");
        assert_eq!(tick(2.0, &[0.0, 2.0]), "2");
    }

    #[test]
    fn a_doubling_scale_gives_each_doubling_the_same_way() {
        let scale = Scale {
            low: 1.0,
            high: 16.0,
            pixels: (0.0, 100.0),
            step: Step::Doubling,
        };
        assert_eq!([1.0, 4.0, 16.0].map(|v| scale.at(v)), [0.0, 50.0, 100.0]);
    }

    #[test]
    fn what_a_drawing_says_is_spelled_out() {
        let mut canvas = Canvas::new(10.0, 10.0);
        canvas.open(Look::Arm(7), Some("<i>"));
        canvas.marker((1.0, -0.01), Look::Arm(7), "<b>");
        canvas.text((0.0, 0.0), Anchor::End, "a", "<c>");
        canvas.close();
        let svg = canvas.finish("x", "<t>", "<d>");
        for tag in ["<i>", "<b>", "<c>", "<t>", "<d>"] {
            assert!(!svg.contains(tag), "{svg}");
        }
        assert!(svg.contains("translate(1 0)"), "{svg}");
    }
}
