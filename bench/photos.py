"""Photos as training sets hold them: random 4:3 parts of Debian's photos (mate-backgrounds, lomiri-wallpapers-16.04), 500x375, JPEG of quality 95 (about 57 KB).

python3 bench/photos.py FOLDER [COUNT]: writes COUNT (default 512) of them, in one folder per photo; the same for the same packages. What it made, as JSON on stdout."""
import json
import pathlib
import random
import sys

from PIL import Image

PLACES = ("/usr/share/backgrounds", "/usr/share/wallpapers")
SIZE = (500, 375)
QUALITY = 95


def photos():
    """Of at least 1,000 pixels a side: what is smaller would be enlarged, and be no photo any more."""
    Image.MAX_IMAGE_PIXELS = None
    found = []
    for place in PLACES:
        for path in sorted(pathlib.Path(place).rglob("*")):
            if path.suffix.lower() not in (".jpg", ".jpeg") or not path.is_file() or path.is_symlink():
                continue
            with Image.open(path) as image:
                if min(image.size) >= 1000:
                    found.append(path)
    return found


def part(image, chance):
    """A 4:3 part, at least as large as the result."""
    most = min(image.width / SIZE[0], image.height / SIZE[1])
    scale = chance.uniform(1, max(most, 1))
    width, height = round(SIZE[0] * scale), round(SIZE[1] * scale)
    x, y = chance.randint(0, image.width - width), chance.randint(0, image.height - height)
    return image.resize(SIZE, box=(x, y, x + width, y + height), resample=3)  # bicubic


def write(folder, count):
    chance = random.Random(1)
    paths = photos()
    if not paths:
        raise RuntimeError(f"no photos in {' or '.join(PLACES)}: apt-get install mate-backgrounds lomiri-wallpapers-16.04")
    total = 0
    for k, path in enumerate(paths):
        target = pathlib.Path(folder) / f"photo{k:02}"
        target.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            image = image.convert("RGB")
            for i in range(count * k // len(paths), count * (k + 1) // len(paths)):
                name = target / f"{i:06}.jpg"
                part(image, chance).save(name, quality=QUALITY)
                total += name.stat().st_size
    return {"photos": len(paths), "images": count, "mean_bytes": total / count}


if __name__ == "__main__":
    print(json.dumps(write(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 512)))
