package browser

import (
	"bytes"
	"flag"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var keep = flag.Bool("screenshots", false, "write docs/screenshots")

// maxScreenshot is how large a picture may be that is kept.
const maxScreenshot = 200 << 10

// A picture of each page can be taken whole, and is small enough to be kept. Kept they are by
// only `make screenshots`: fonts differ between machines, and so do pictures.
func TestScreenshots(t *testing.T) {
	dir := t.TempDir()
	if *keep {
		dir = "../../../docs/screenshots"
		require.NoError(t, os.MkdirAll(dir, 0o755))
	}
	node, cluster := nodePage(t, usual), clusterPage(t, usual)
	b := browse(t)
	for _, picture := range []struct {
		name, url string
		width     int64
		scheme    string
	}{
		{"node", node, 900, "light"}, {"node-dark", node, 900, "dark"}, {"node-narrow", node, 400, "light"}, {"cluster", cluster, 900, "light"},
	} {
		b.window(t, picture.width, 600, picture.scheme)
		b.open(t, picture.url)
		const quality = 100 // PNG
		data, err := chromedp.Run(b, chromedp.FullScreenshot(quality))
		require.NoError(t, err)
		shown, err := png.Decode(bytes.NewReader(data))
		require.NoError(t, err)
		assert.Equal(t, int(picture.width), shown.Bounds().Dx(), picture.name)
		data = compressed(t, shown)
		assert.Less(t, len(data), maxScreenshot, picture.name)
		require.NoError(t, os.WriteFile(filepath.Join(dir, picture.name+".png"), data, 0o644))
	}
}

// compressed is a picture as small as can be: in the 256 colours that it has most of, which
// is all but some shades of letters' edges.
func compressed(t *testing.T, shown image.Image) []byte {
	count := map[color.Color]int{}
	area := shown.Bounds()
	for y := range area.Dy() {
		for x := range area.Dx() {
			count[shown.At(x, y)]++
		}
	}
	colours := slices.SortedFunc(maps.Keys(count), func(a, b color.Color) int { return count[b] - count[a] })
	few := image.NewPaletted(area, colours[:min(256, len(colours))])
	draw.Draw(few, area, shown, area.Min, draw.Src)
	var small bytes.Buffer
	require.NoError(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, few))
	return small.Bytes()
}
