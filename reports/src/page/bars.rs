//! Bars that lie under the names they belong to, so that long names of arms have room on a narrow screen.

use super::svg::{Anchor, Canvas, Look, Scale, Step, tick, ticks};

const WIDTH: f64 = 360.0;
const SIDE: f64 = 12.0;
const ROW: f64 = 36.0;
const BAR: f64 = 13.0;
const FOOT: f64 = 40.0;

/// One bar, of one layer or of several.
pub(crate) struct Bar {
    pub(crate) arm: String,
    /// At the right end of the name's line.
    pub(crate) value: String,
    /// From the left.
    pub(crate) layers: Vec<Layer>,
    pub(crate) interval: Option<(f64, f64)>,
}

/// A part of a bar.
pub(crate) struct Layer {
    pub(crate) look: Look,
    /// Name of a pattern of the page that is laid over the colour.
    pub(crate) pattern: Option<&'static str>,
    pub(crate) length: f64,
}

impl Layer {
    /// All of a bar that has one part.
    pub(crate) fn plain(length: f64) -> Self {
        Self {
            look: Look::Plain,
            pattern: None,
            length,
        }
    }
}

/// Bars of one scale, one below another.
pub(crate) struct BarChart {
    pub(crate) title: String,
    pub(crate) desc: String,
    pub(crate) label: &'static str,
    /// The scale reaches at least this far, so that drawings beside each other compare.
    pub(crate) reach: f64,
    /// A line across all bars.
    pub(crate) reference: Option<f64>,
    pub(crate) bars: Vec<Bar>,
}

impl Bar {
    /// How far it reaches, its interval included.
    pub(crate) fn end(&self) -> f64 {
        let sum: f64 = self.layers.iter().map(|l| l.length).sum();
        self.interval.map_or(sum, |i| i.1.max(sum))
    }
}

impl BarChart {
    pub(crate) fn svg(&self, id: &str) -> String {
        let height = self.bars.len() as f64 * ROW + FOOT + 6.0;
        let mut canvas = Canvas::new(WIDTH, height);
        let places = ticks(0.0, self.reach, 5);
        let scale = Scale {
            low: 0.0,
            high: places.last().copied().unwrap_or(1.0),
            pixels: (SIDE, WIDTH - SIDE),
            step: Step::Even,
        };
        let bottom = height - FOOT;
        for place in &places {
            let at = scale.at(*place);
            canvas.line((at, 4.0), (at, bottom), "grid");
            canvas.text(
                (at, bottom + 16.0),
                Anchor::Middle,
                "tick",
                &tick(*place, &places),
            );
        }
        canvas.text(
            (WIDTH / 2.0, height - 6.0),
            Anchor::Middle,
            "label",
            self.label,
        );
        for (idx, bar) in self.bars.iter().enumerate() {
            bar.draw(&mut canvas, &scale, 4.0 + idx as f64 * ROW);
        }
        if let Some(reference) = self.reference {
            let at = scale.at(reference);
            canvas.line((at, 4.0), (at, bottom), "guide");
        }
        canvas.line((scale.at(0.0), 4.0), (scale.at(0.0), bottom), "axis");
        canvas.finish(id, &self.title, &self.desc)
    }
}

impl Bar {
    fn draw(&self, canvas: &mut Canvas, scale: &Scale, top: f64) {
        canvas.open(Look::Plain, Some(&self.arm));
        let line = top + 13.0;
        canvas.text(
            (SIDE + 4.0, line),
            Anchor::Start,
            "name halo",
            &short(&self.arm),
        );
        canvas.text((WIDTH - SIDE, line), Anchor::End, "value halo", &self.value);
        let (mut from, bar_top) = (0.0, top + 18.0);
        for layer in &self.layers {
            let (left, right) = (scale.at(from), scale.at(from + layer.length));
            let classes = [Some(layer.look.class()), layer.pattern.map(str::to_owned)];
            for class in classes.into_iter().flatten() {
                let class = format!("bar {class}");
                canvas.rect((left, bar_top), (right - left, BAR), &class);
            }
            from += layer.length;
        }
        if let Some((low, high)) = self.interval {
            let middle = bar_top + BAR / 2.0;
            let (low, high) = (scale.at(low), scale.at(high));
            canvas.line((low, middle), (high, middle), "error");
            for end in [low, high] {
                canvas.line((end, middle - 4.0), (end, middle + 4.0), "error");
            }
        }
        canvas.close();
    }
}

/// A name that leaves room for a number beside it.
fn short(name: &str) -> String {
    const MOST: usize = 40;
    match name.chars().count() <= MOST {
        true => name.to_owned(),
        false => name.chars().take(MOST - 1).chain(['\u{2026}']).collect(),
    }
}

/// Upright bars of shares, one for each number from 0.
pub(crate) struct Histogram {
    pub(crate) title: String,
    pub(crate) desc: String,
    pub(crate) arm: String,
    /// The tallest of all drawings that stand beside each other.
    pub(crate) reach: f64,
    /// Places for bars, so that drawings beside each other compare.
    pub(crate) n_bars: usize,
    pub(crate) shares: Vec<f64>,
}

impl Histogram {
    pub(crate) fn svg(&self, id: &str) -> String {
        const W: f64 = 260.0;
        const H: f64 = 150.0;
        let (left, bottom, top) = (34.0, H - 22.0, 18.0);
        let mut canvas = Canvas::new(W, H);
        let places = ticks(0.0, self.reach, 3);
        let scale = Scale {
            low: 0.0,
            high: places.last().copied().unwrap_or(1.0),
            pixels: (bottom, top),
            step: Step::Even,
        };
        for place in &places {
            let at = scale.at(*place);
            canvas.line((left, at), (W - 4.0, at), "grid");
            let percent = format!("{:.0}%", place * 100.0);
            canvas.text((left - 4.0, at + 4.0), Anchor::End, "tick", &percent);
        }
        let slot = (W - 4.0 - left) / self.n_bars.max(1) as f64;
        let every = self.n_bars.div_ceil(10).max(1);
        for idx in (0..self.n_bars).step_by(every) {
            let at = (left + (idx as f64 + 0.5) * slot, bottom + 15.0);
            canvas.text(at, Anchor::Middle, "tick", &idx.to_string());
        }
        canvas.open(Look::Plain, Some(&self.arm));
        for (idx, share) in self.shares.iter().enumerate() {
            let x = left + idx as f64 * slot;
            let y = scale.at(*share);
            canvas.rect((x + 1.0, y), (slot - 2.0, bottom - y), "bar cp");
        }
        let mean: f64 = (0..)
            .zip(&self.shares)
            .map(|(n, share)| f64::from(n) * share)
            .sum();
        let says = format!("mean {mean:.2}");
        canvas.text((W - 4.0, 11.0), Anchor::End, "tick halo", &says);
        canvas.close();
        canvas.line((left, bottom), (W - 4.0, bottom), "axis");
        canvas.finish(id, &self.title, &self.desc)
    }
}
