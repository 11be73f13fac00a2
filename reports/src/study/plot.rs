//! Plots of the study, as SVG text and as PNG files, drawn with a font that is inside the binary.

use std::ops::Range;
use std::sync::Once;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::register_font;

use super::png;
use super::pool::{ArmKey, Pool};
use super::sheets::{BY_SLOT, COSTED, CUTS, CostParts, Coverage, KS, Pools};
use crate::Share;
use crate::coverage::{self, CoverageRecord, SlotCoverage};

const SIZE: (u32, u32) = (900, 520);
const FONT: &str = "sans-serif";

/// Okabe and Ito's colours, which readers of every colour vision tell apart, with brown in place of their yellow, which
/// is lost on white.
const COLORS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
    RGBColor(140, 86, 40),
];

/// A plot could not be drawn or written.
#[derive(Debug, thiserror::Error)]
#[error("plot {id}: {why}")]
pub struct PlotError {
    /// The plot.
    pub id: &'static str,
    /// What the backend says.
    pub why: String,
}

/// One plot: a number over named places on the horizontal axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Names its files.
    pub id: &'static str,
    /// Above it.
    pub title: String,
    /// Below the horizontal axis.
    pub x_label: &'static str,
    /// Beside the vertical axis.
    pub y_label: &'static str,
    /// Places on the horizontal axis, from the left.
    pub places: Vec<String>,
    /// How its series are drawn.
    pub style: PlotStyle,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// How series are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlotStyle {
    /// Each a line with its intervals.
    Lines,
    /// Each a layer of a stack of bars.
    Stack,
    /// Each a bar beside the others', with its interval.
    Bars,
}

/// One line, or one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// One entry a place; `None` is a gap.
    pub values: Vec<Option<Share>>,
}

impl Series {
    pub(crate) fn new(name: &str, values: Vec<Option<Share>>) -> Self {
        Self {
            name: name.to_owned(),
            values,
        }
    }
}

/// Every plot that there are values for.
pub(crate) fn plots(pools: &Pools, coverage: &[CoverageRecord]) -> Vec<Plot> {
    let cover = Coverage::of(coverage);
    let all = [
        cover.as_ref().map(|c| by_slot(&c.slots())),
        Some(acceptance(pools)),
        Some(by_k(pools, cover.as_ref())),
        Some(by_gamma(pools)),
        Some(cost(pools)),
        Some(throughput(pools)),
    ];
    let mut plots: Vec<Plot> = all.into_iter().flatten().collect();
    for plot in &mut plots {
        plot.series.retain(|s| s.values.iter().any(Option::is_some));
    }
    plots.retain(|plot| !plot.series.is_empty());
    plots
}

pub(crate) fn lines(
    id: &'static str,
    title: &str,
    labels: [&'static str; 2],
    places: Vec<String>,
) -> Plot {
    Plot {
        id,
        title: title.to_owned(),
        x_label: labels[0],
        y_label: labels[1],
        places,
        style: PlotStyle::Lines,
        series: Vec::new(),
    }
}

fn numbers(n: usize) -> Vec<String> {
    (1..=n).map(|i| i.to_string()).collect()
}

fn by_slot(slots: &[SlotCoverage]) -> Plot {
    let labels = ["draft position", "share"];
    let mut plot = lines(
        "coverage",
        "What a slot holds",
        labels,
        numbers(slots.len()),
    );
    let of = |pick: fn(&SlotCoverage) -> Option<Share>| slots.iter().map(pick).collect();
    plot.series = vec![
        Series::new("right token in the top 16", of(|s| Some(s.covered))),
        Series::new("first choice right", of(|s| Some(s.top1))),
        Series::new("misses with it in the top 16", of(|s| s.rescued)),
    ];
    plot
}

fn acceptance(pools: &Pools) -> Plot {
    let its: Vec<(&str, Vec<Share>)> = BY_SLOT
        .iter()
        .filter_map(|m| Some((*m, pools.get(&ArmKey::greedy(m))?.conditional_acceptance())))
        .collect();
    let n_slots = its.iter().map(|(_, s)| s.len()).max().unwrap_or(0);
    let labels = ["draft position", "accepted, of those judged"];
    let mut plot = lines(
        "positions",
        "Conditional acceptance",
        labels,
        numbers(n_slots),
    );
    for (name, slots) in its {
        let values = (0..n_slots).map(|i| slots.get(i).copied()).collect();
        plot.series.push(Series::new(name, values));
    }
    plot
}

fn by_k(pools: &Pools, cover: Option<&Coverage<'_>>) -> Plot {
    let places = KS.iter().map(u32::to_string).collect();
    let mut plot = lines("k", "tau by candidates a slot", ["K", "tau"], places);
    let of = |k: &u32| {
        pools
            .get(&ArmKey::greedy(&format!("dcoco:k={k}")))
            .and_then(Pool::tau)
    };
    plot.series
        .push(Series::new("DCOCO, walk", KS.iter().map(of).collect()));
    if let Some(cover) = cover {
        let oracle = |k: &u32| coverage::oracle_tau(&cover.main, *k);
        let values = KS.iter().map(oracle).collect();
        plot.series.push(Series::new(
            &format!("oracle path of {}", cover.checkpoint),
            values,
        ));
    }
    plot
}

fn by_gamma(pools: &Pools) -> Plot {
    const GAMMAS: [u32; 5] = [3, 5, 7, 11, 15];
    let places = GAMMAS.iter().map(u32::to_string).collect();
    let mut plot = lines("gamma", "tau by drafts a round", ["gamma", "tau"], places);
    for (name, cuts) in CUTS {
        let tau = |gamma: &u32| {
            let arm = cuts.iter().find(|(g, _)| g == gamma)?.1;
            pools.get(&ArmKey::greedy(arm))?.tau()
        };
        plot.series
            .push(Series::new(name, GAMMAS.iter().map(tau).collect()));
    }
    plot
}

/// Arms of the cost plots at every concurrency that has one.
fn costed(pools: &Pools) -> Vec<(u32, &'static str, &Pool)> {
    let at = |concurrency| {
        COSTED.iter().filter_map(move |method| {
            let key = ArmKey {
                concurrency,
                ..ArmKey::greedy(method)
            };
            Some((concurrency, *method, pools.get(&key)?))
        })
    };
    [1, 4, 8, 16, 32].into_iter().flat_map(at).collect()
}

fn cost(pools: &Pools) -> Plot {
    let its = costed(pools);
    let places = its
        .iter()
        .map(|(c, method, _)| format!("{method} x{c}"))
        .collect();
    let labels = ["arm and sequences", "milliseconds a round of one sequence"];
    let mut plot = lines("cost", "Time of a round by part", labels, places);
    plot.style = PlotStyle::Stack;
    for (part, name) in ["trunk", "head", "verify", "hand-over", "rest"]
        .into_iter()
        .enumerate()
    {
        let value = |pool: &Pool| Share {
            value: CostParts::of(pool).each()[part] / 1000.0,
            interval: None,
        };
        let values = its.iter().map(|(_, _, pool)| Some(value(pool))).collect();
        plot.series.push(Series::new(name, values));
    }
    plot
}

fn throughput(pools: &Pools) -> Plot {
    let its = costed(pools);
    let mut concurrencies: Vec<u32> = its.iter().map(|i| i.0).collect();
    concurrencies.dedup();
    let places = concurrencies.iter().map(u32::to_string).collect();
    let labels = ["sequences at once", "throughput over vanilla's"];
    let mut plot = lines("throughput", "Speedup by batch size", labels, places);
    for method in COSTED {
        let speedup = |concurrency: &u32| {
            let of = |method: &str| {
                pools.get(&ArmKey {
                    concurrency: *concurrency,
                    ..ArmKey::greedy(method)
                })
            };
            let gain = of(method)?.throughput_gain(of("vanilla")?)?;
            Some(Share {
                value: gain.value + 1.0,
                interval: gain.interval.map(|(low, high)| (low + 1.0, high + 1.0)),
            })
        };
        let values = concurrencies.iter().map(speedup).collect();
        plot.series.push(Series::new(method, values));
    }
    plot
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

impl Plot {
    /// The plot as SVG.
    ///
    /// # Errors
    /// If it cannot be drawn.
    pub fn svg(&self) -> Result<String, PlotError> {
        let mut text = String::new();
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        self.draw(&root).map_err(|err| self.error(&*err))?;
        drop(root);
        Ok(text)
    }

    /// The plot as PNG.
    ///
    /// # Errors
    /// If it cannot be drawn.
    pub fn png(&self) -> Result<Vec<u8>, PlotError> {
        let mut pixels = vec![0; (SIZE.0 * SIZE.1 * 3) as usize];
        let root = BitMapBackend::with_buffer(&mut pixels, SIZE).into_drawing_area();
        self.draw(&root).map_err(|err| self.error(&*err))?;
        drop(root);
        png::encode(&pixels, SIZE).map_err(|err| self.error(&err))
    }

    fn error(&self, err: &dyn std::error::Error) -> PlotError {
        PlotError {
            id: self.id,
            why: err.to_string(),
        }
    }

    fn draw<DB: DrawingBackend>(&self, root: &DrawingArea<DB, Shift>) -> Drawn
    where
        DB::ErrorType: 'static,
    {
        register_fonts();
        root.fill(&WHITE)?;
        let n = self.places.len();
        let (low, high) = self.range();
        let crowded = n > 8;
        let x = Places(self.places.clone());
        let mut chart = ChartBuilder::on(root)
            .caption(&self.title, (FONT, 22))
            .margin(12)
            .x_label_area_size(if crowded { 120 } else { 48 })
            .y_label_area_size(64)
            .build_cartesian_2d(x, low..high)?;
        let mut mesh = chart.configure_mesh();
        mesh.disable_x_mesh()
            .max_light_lines(0)
            .x_desc(self.x_label)
            .y_desc(self.y_label)
            .x_labels(n)
            .label_style((FONT, 14))
            .axis_desc_style((FONT, 15));
        if crowded {
            let turned = (FONT, 13).into_font().transform(FontTransform::Rotate90);
            mesh.x_label_style(turned);
        }
        mesh.draw()?;
        let mut below = vec![0.0; n];
        for (idx, series) in self.series.iter().enumerate() {
            self.draw_one(&mut chart, (idx, series), &mut below)?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .label_font((FONT, 14))
            .draw()?;
        root.present()?;
        Ok(())
    }

    /// Draws one series; `below` is how high the stack of each place is.
    fn draw_one<DB: DrawingBackend>(
        &self,
        chart: &mut ChartContext<'_, DB, Cartesian2d<Places, RangedCoordf64>>,
        (idx, series): (usize, &Series),
        below: &mut [f64],
    ) -> Drawn
    where
        DB::ErrorType: 'static,
    {
        let color = COLORS[idx % COLORS.len()].mix(1.0);
        let each = series.values.iter().enumerate();
        let points: Vec<(f64, Share)> = each.filter_map(|(i, s)| Some((i as f64, (*s)?))).collect();
        // Bars side by side have 0.8 of a place together.
        let width = 0.8 / self.series.len() as f64;
        let left = |x: f64| x - 0.4 + idx as f64 * width;
        let (ink, middle) = match self.style {
            PlotStyle::Bars => (BLACK.mix(1.0), left(0.0) + 0.45 * width),
            PlotStyle::Lines | PlotStyle::Stack => (color, 0.0),
        };
        let drawn = match self.style {
            PlotStyle::Lines => {
                let spots = points.iter();
                let spots = spots.map(|(x, s)| Circle::new((*x, s.value), 4, color.filled()));
                chart.draw_series(spots)?;
                let line = points.iter().map(|(x, s)| (*x, s.value));
                chart.draw_series(LineSeries::new(line, color.stroke_width(2)))?
            }
            PlotStyle::Bars => {
                let bars = points.iter().map(|(x, s)| {
                    let corners = [(left(*x), 0.0), (left(*x) + 0.9 * width, s.value)];
                    Rectangle::new(corners, color.filled())
                });
                chart.draw_series(bars)?
            }
            PlotStyle::Stack => {
                let bars = points.iter().map(|(x, s)| {
                    let from = below[*x as usize];
                    below[*x as usize] += s.value;
                    let corners = [(x - 0.35, from), (x + 0.35, from + s.value)];
                    Rectangle::new(corners, color.filled())
                });
                chart.draw_series(bars)?
            }
        };
        drawn
            .label(series.name.as_str())
            .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 14, y + 4)], color.filled()));
        let spread = points.iter().filter_map(|(x, s)| {
            let (low, high) = s.interval?;
            let ends = vec![(x + middle, low), (x + middle, high)];
            Some(PathElement::new(ends, ink.stroke_width(1)))
        });
        chart.draw_series(spread)?;
        Ok(())
    }

    /// Of the vertical axis: from 0 for bars and shares, with room for the legend above.
    fn range(&self) -> (f64, f64) {
        let mut top = 0.0f64;
        let mut below = vec![0.0; self.places.len()];
        for series in &self.series {
            for (sum, share) in below.iter_mut().zip(&series.values) {
                let Some(share) = share else { continue };
                *sum += share.value;
                let own = match self.style {
                    PlotStyle::Lines | PlotStyle::Bars => {
                        share.interval.map_or(share.value, |i| i.1)
                    }
                    PlotStyle::Stack => *sum,
                };
                top = top.max(own);
            }
        }
        // A line of the legend is about 18 of the 420 pixels that the axis is high.
        let free = 1.0 - (self.series.len() as f64 * 18.0 + 16.0) / 420.0;
        (0.0, if top > 0.0 { top / free.max(0.5) } else { 1.0 })
    }
}

/// A horizontal axis of named places at 0, 1, 2, ..
#[derive(Clone)]
struct Places(Vec<String>);

impl Ranged for Places {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value + 0.5) / self.0.len().max(1) as f64;
        limit.0 + (f64::from(limit.1 - limit.0) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        (0..self.0.len()).map(|i| i as f64).collect()
    }

    fn range(&self) -> Range<f64> {
        -0.5..self.0.len() as f64 - 0.5
    }
}

impl ValueFormatter<f64> for Places {
    fn format(value: &f64) -> String {
        value.to_string()
    }

    fn format_ext(&self, value: &f64) -> String {
        let place = self.0.get(value.round() as usize);
        place.cloned().unwrap_or_default()
    }
}

/// The font is inside the binary, since a machine that measures need not have one.
fn register_fonts() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // The one error is a font that cannot be parsed; drawing text would then say so.
        drop(register_font(
            FONT,
            FontStyle::Normal,
            dejavu::sans::regular(),
        ));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(style: PlotStyle) -> Plot {
        let share = |value: f64| {
            Some(Share {
                value,
                interval: Some((value - 0.1, value + 0.1)),
            })
        };
        Plot {
            style,
            series: vec![
                Series::new("dflash", vec![share(3.0), None, share(2.0)]),
                Series::new("dcoco", vec![share(3.5), share(3.0), share(2.5)]),
            ],
            ..lines("test", "A test", ["K", "tau"], numbers(3))
        }
    }

    #[test]
    fn a_plot_is_drawn_as_svg_with_its_words() {
        for style in [PlotStyle::Lines, PlotStyle::Stack, PlotStyle::Bars] {
            let svg = plot(style).svg().unwrap();
            for word in ["<svg", "A test", "dflash", "dcoco", "tau"] {
                assert!(svg.contains(word), "{word} is not in {svg}");
            }
        }
        let lines = plot(PlotStyle::Lines).svg().unwrap();
        assert_eq!(lines.matches("<circle").count(), 5, "{lines}");
    }

    #[test]
    fn a_plot_is_drawn_as_png() {
        let bytes = plot(PlotStyle::Lines).png().unwrap();
        assert!(
            bytes.starts_with(b"\x89PNG\r\n\x1a\n"),
            "{} bytes",
            bytes.len()
        );
        let size = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((size(16), size(20)), SIZE);
    }

    #[test]
    fn the_axis_holds_intervals_and_stacks() {
        let free = 1.0 - 52.0 / 420.0;
        assert_eq!(plot(PlotStyle::Lines).range(), (0.0, 3.6 / free));
        assert_eq!(plot(PlotStyle::Stack).range(), (0.0, 6.5 / free));
    }
}
