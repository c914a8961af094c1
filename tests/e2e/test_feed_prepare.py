"""`lockstep feed` on images as its users call it, and its pixels beside those of PIL."""
import json
import pathlib
import subprocess
import tempfile
import unittest

import numpy
from PIL import Image

from harness import BINARY

CHANCE = numpy.random.default_rng(1)


def picture(width, height, channels=3):
    """Smooth, with some noise: every coefficient and every edge of a crop matters."""
    y, x = numpy.mgrid[0:height, 0:width]
    waves = [120 + 80 * numpy.sin(x / (9 + c) + c) * numpy.cos(y / (7 + 2 * c)) for c in range(channels)]
    noise = CHANCE.integers(-30, 30, (height, width, channels))
    return numpy.clip(numpy.stack(waves, -1) + noise, 0, 255).astype(numpy.uint8)


def feed(*words):
    return subprocess.run([BINARY, "feed", *map(str, words)], capture_output=True, text=True, timeout=60, check=False)


class Feed(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def document(self, *words):
        answer = feed(*words, "--json")
        self.assertEqual((0, ""), (answer.returncode, answer.stderr))
        return json.loads(answer.stdout)

    def shown(self, path, *words):
        """What Lockstep makes of it, and what PIL makes of the same crop."""
        out = self.folder / "shown.ppm"
        told = self.document("show", path, "--out", out, *words)
        with Image.open(path) as image:
            x, y, width, height = told["crop_x_y_width_height"]
            whole = image.convert("RGB").crop((x, y, x + width, y + height))
            whole = whole.resize(told["scaled_width_height"], Image.BILINEAR)
            x, y, width, height = told["kept_x_y_width_height"]
            theirs = numpy.asarray(whole.crop((x, y, x + width, y + height))).astype(int)
        with Image.open(out) as ours:
            return numpy.asarray(ours).astype(int), theirs[:, ::-1] if told["flip"] else theirs

    def assert_as_pil(self, path, *words):
        ours, theirs = self.shown(path, *words)
        self.assertLessEqual(abs(ours - theirs).max(), 1, (path, words))
        self.assertLess((ours != theirs).mean(), 0.05, (path, words))

    def test_pixels_are_those_of_pil(self):
        kinds = {"rgb.jpg": ("RGB", {"quality": 95}), "full.jpg": ("RGB", {"subsampling": 0}), "half.jpg": ("RGB", {"subsampling": 1}),
                 "progressive.jpg": ("RGB", {"progressive": True}), "gray.jpg": ("L", {}), "cmyk.jpg": ("CMYK", {}), "rgb.png": ("RGB", {}),
                 "alpha.png": ("RGBA", {}), "gray.png": ("L", {}), "palette.png": ("P", {}), "bits.png": ("1", {}), "lossless.webp": ("RGB", {"lossless": True}),
                 "lossy.webp": ("RGB", {}), "alpha.webp": ("RGBA", {"lossless": True, "exact": True})}
        for name, (mode, options) in kinds.items():
            path = self.folder / name
            if mode in ("CMYK", "RGBA"):
                Image.fromarray(picture(301, 203, 4), mode).save(path, **options)
            else:
                Image.fromarray(picture(301, 203)).convert(mode).save(path, **options)
            for item in range(4):
                self.assert_as_pil(path, "--item", item)
            self.assert_as_pil(path, "--center")

    def test_crops_of_a_photo_sized_image(self):
        path = self.folder / "photo.jpg"
        Image.fromarray(picture(500, 375)).save(path, quality=95)
        for item in range(12):
            self.assert_as_pil(path, "--item", item, "--size", (224, 160, 97)[item % 3])

    def test_an_image_with_index_has_the_same_pixels(self):
        (self.folder / "in" / "cat").mkdir(parents=True)
        for name, options in {"a.jpg": {}, "b.jpg": {"progressive": True}, "c.jpg": {"exif": orientation(6)}}.items():
            Image.fromarray(picture(333, 251)).save(self.folder / "in" / "cat" / name, **options)
        (self.folder / "in" / "cat" / "cut.jpg").write_bytes((self.folder / "in" / "cat" / "a.jpg").read_bytes()[:5000])
        Image.fromarray(picture(33, 25)).save(self.folder / "in" / "cat" / "d.png")
        (self.folder / "in" / "notes.txt").write_text("no image")
        counts = self.document("index", self.folder / "in", "--out", self.folder / "out")
        self.assertEqual((5, 3, 2, 1, 1), tuple(counts[name] for name in ("images", "indexed", "copied_as_they_are", "damaged", "not_taken")))
        small = self.document("index", self.folder / "in", "--out", self.folder / "small", "--max-pixels", 100)
        self.assertEqual((0, 5), (small["indexed"], small["copied_as_they_are"]))
        for name in ("a.jpg", "b.jpg", "c.jpg"):
            before, after = self.folder / "in" / "cat" / name, self.folder / "out" / "cat" / name
            with Image.open(before) as one, Image.open(after) as other:
                self.assertTrue((numpy.asarray(one) == numpy.asarray(other)).all(), name)
                self.assertEqual(one.getexif(), other.getexif(), name)
            self.assertEqual(before.stat().st_mode, after.stat().st_mode)
            told = self.document("show", after, "--item", 3)
            self.assertTrue(told["by_tile_index"])
            self.assertTrue((self.shown(before, "--item", 3)[0] == self.shown(after, "--item", 3)[0]).all(), name)

    def test_an_image_that_cannot_be_read_stops_no_other(self):
        (self.folder / "in").mkdir()
        for name in ("a.jpg", "c.jpg"):
            Image.fromarray(picture(40, 30)).save(self.folder / "in" / name)
        (self.folder / "in" / "b.jpg").symlink_to("nowhere.jpg")
        answer = feed("index", self.folder / "in", "--out", self.folder / "out")
        self.assertEqual((2, "", 1), (answer.returncode, answer.stdout, answer.stderr.count("\n")))
        self.assertIn(f"1 of 3 images could not be read and are missing in {self.folder / 'out'}", answer.stderr)
        self.assertIn("b.jpg: No such file", answer.stderr)
        self.assertEqual(["a.jpg", "c.jpg"], sorted(path.name for path in (self.folder / "out").iterdir()))

    def test_a_rotated_image_is_not_turned(self):
        path = self.folder / "rotated.jpg"
        Image.fromarray(picture(120, 80)).save(path, exif=orientation(6))
        self.assertEqual((120, 80), tuple(self.document("show", path)[side] for side in ("width", "height")))
        self.assert_as_pil(path)

    def test_a_name_does_not_matter(self):
        path = self.folder / "in.jpg"
        Image.fromarray(picture(50, 40)).save(path, format="PNG")
        self.assert_as_pil(path)
        Image.fromarray(picture(1, 1)).save(path)
        self.assert_as_pil(path)

    def test_bad_images_are_one_error(self):
        good = self.folder / "good.jpg"
        Image.fromarray(picture(200, 200)).save(good)
        bomb = self.folder / "bomb.png"
        Image.new("1", (8000, 5000)).save(bomb)
        (self.folder / "empty.jpg").write_bytes(b"")
        (self.folder / "text.jpg").write_text("no image at all")
        (self.folder / "cut.jpg").write_bytes(good.read_bytes()[:3000])
        for name, why in {"bomb.png": "8000 x 5000 pixels: the limit is", "empty.jpg": "empty", "text.jpg": "expected a JPEG, a PNG or a WebP", "none.jpg": "No such file"}.items():
            answer = feed("show", self.folder / name)
            self.assertEqual((2, ""), (answer.returncode, answer.stdout), name)
            self.assertIn(why, answer.stderr)
            self.assertIn(name, answer.stderr)
            self.assertEqual(1, answer.stderr.count("\n"), answer.stderr)
        answer = feed("show", self.folder / "cut.jpg", "--center")
        self.assertIn("truncated", answer.stderr)
        (self.folder / "endless.jpg").write_bytes(good.read_bytes()[:-2])  # all pixels are there
        self.assertTrue((self.shown(good, "--center")[0] == self.shown(self.folder / "endless.jpg", "--center")[0]).all())
        self.assertEqual(0, feed("show", bomb, "--max-pixels", 40_000_000).returncode)

    def test_a_measurement_leaves_bad_images_out_and_says_so(self):
        for i in range(5):
            Image.fromarray(picture(200, 150)).save(self.folder / f"{i}.jpg")
        (self.folder / "empty.jpg").write_bytes(b"")
        found = self.document("bench", "--dir", self.folder, "--passes", 2)
        self.assertEqual((5, 1), (found["images"], found["left_out"]))
        self.assertGreater(found["images_per_s_per_core"], 0)
        self.assertGreater(found["with_tile_index"]["images_per_s_per_core"], 0)
        self.assertEqual(5, found["with_tile_index"]["index"]["indexed"])
        answer = feed("bench", "--dir", self.folder / "none")
        self.assertEqual(2, answer.returncode)
        self.assertIn("No such file", answer.stderr)

    def test_a_few_open_files_are_enough(self):
        for i in range(300):
            Image.fromarray(picture(20, 20)).save(self.folder / f"{i}.jpg")
        command = f"ulimit -n 32 && exec '{BINARY}' feed bench --dir '{self.folder}' --passes 1 --json"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((0, ""), (done.returncode, done.stderr))
        self.assertEqual(300, json.loads(done.stdout)["images"])


def orientation(value):
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


if __name__ == "__main__":
    unittest.main()
