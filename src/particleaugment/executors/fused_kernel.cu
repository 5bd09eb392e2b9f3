// One block augments one image: draw or read its program, load it (crop, flip), run its ops in shared memory,
// write the network's input (erase, normalise). Pixels are packed as 0x00BBGGRR, so that the channels share one load.
//
// Types, ops and coefficients are those of coefficients.cu, which is compiled with it. Cutout is not done here.

enum Stream { CROP = 1, FLIP = 2, ERASE = 3, PARTICLE = 4, OP = 5, SIGN = 6, GATE = 11, LEVEL = 12, INTERPOLATION = 13 };
enum Draw { GIVEN, RANDOM_OPS, RANDOM_LEVELS, ROWS, PARTICLES };
enum Resampling { NEAREST, BILINEAR, BICUBIC };
enum Output { OUT_UINT8, OUT_FLOAT32, OUT_FLOAT16, OUT_BFLOAT16 };

const int MAX_SLOTS = 64;
const int HISTOGRAM_COPIES = 4;
const int ERASE_ATTEMPTS = 10;

// The host fills this structure field by field (fused.py): 8-byte fields first, so that both sides agree on the layout.
struct Params {
  const u8* images;        // [N, C, H, W]
  const i64* index;        // [B] rows of images, or null: image b is row b
  const i64* ids;          // [B] sample ids, or null if nothing is drawn
  const i64* epoch;        // device scalar
  const i64* seed;         // device scalar
  const i64* op;           // [B, K] program, or null if it is drawn
  const double* arg;       // [B, K]
  const i64* code;         // [B, K] resampling per slot, or null
  const double* edges;     // [R] upper edges of the particles' intervals
  const i64* particle;     // [B] particle of each sample, or null: drawn by weight
  const double* gate;      // [R, K] probabilities, [1] for RANDOM_OPS, [K, choices] for RANDOM_LEVELS, falling with K
  const i64* table_op;     // ops by choice, by (row, slot) or by slot
  const double* table_arg; // [..., 2] arguments with sign + and -
  void* out;
  u32* scratch;            // [B, H * W] second buffer where shared memory holds only one, else null
  i64* drawn;              // [B, K] where the drawn ops are written, or null
  double flip, erase, area_low, area_span, log_aspect_low, log_aspect_span;
  float scale[3], shift[3];
  int draw, batch, slots, channels, height, width, rows, choices, levels, random_code, default_code;
  int pad, crops, flips, erases, normalises, output, channels_last, image_in_shared, both_in_shared;
  u32 fill;
};

struct Key { u32 seed_low, seed_high, epoch, id_low, id_high; };

__device__ double uniform(const Key& key, u32 stream, u32 slot) {
  u32 c0 = key.id_low, c1 = key.id_high, c2 = key.epoch, c3 = (stream << 24) | (slot >> 1);
  u32 k0 = key.seed_low, k1 = key.seed_high;
#pragma unroll
  for (int round = 0; round < 10; round++) {
    u32 high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    u32 high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0; c1 = low1; c2 = high0 ^ c3 ^ k1; c3 = low0;
    k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
  }
  u64 word = (slot & 1) ? ((u64)c2 << 21) | (c3 >> 11) : ((u64)c0 << 21) | (c1 >> 11);
  return (double)word * 0x1p-53;
}

__device__ int choice(double u, int options) { return min((int)(u * (double)options), options - 1); }

// ---- Draws: the same bits as the policies and transforms ----

__device__ double keyed_exp(double x) {
  double small = x * (1.0 / 256.0), series = 1.0;
  for (int n = 10; n >= 1; n--) { series = series * small; series = series * (1.0 / n); series = series + 1.0; }
  for (int n = 0; n < 8; n++) series = series * series;
  return series;
}

__device__ double keyed_sqrt(double x) {
  double root = __longlong_as_double((__double_as_longlong(x) >> 1) + (1023ll << 51));
  for (int n = 0; n < 5; n++) root = (root + x / root) * 0.5;
  return root;
}

__device__ void draw_slot(const Params& p, const Key& key, int slot, int* op, double* arg) {
  int sign = uniform(key, SIGN, slot) < 0.5 ? 0 : 1;
  int entry = 0;
  bool applied = true;
  if (p.draw == RANDOM_OPS || p.draw == RANDOM_LEVELS) {
    entry = choice(uniform(key, OP, slot), p.choices);
    *op = (int)p.table_op[entry];
    bool counted = p.draw == RANDOM_LEVELS;  // then one draw says how many slots are applied
    if (p.gate) applied = uniform(key, GATE, counted ? 0 : slot) < p.gate[counted ? slot * p.choices + entry : 0];
    if (counted) entry = entry * p.levels + choice(uniform(key, LEVEL, slot), p.levels);
  } else if (p.draw == ROWS) {
    entry = choice(uniform(key, OP, 0), p.rows) * p.slots + slot;
    *op = (int)p.table_op[entry];
    applied = uniform(key, GATE, slot) < p.gate[entry];
  } else {
    int low = 0;
    if (p.particle) low = (int)p.particle[blockIdx.x];
    else {
      double u = uniform(key, PARTICLE, 0);
      int high = p.rows - 1;  // first edge above u
      while (low < high) { int middle = (low + high) / 2; if (p.edges[middle] > u) high = middle; else low = middle + 1; }
    }
    *op = (int)p.table_op[slot];
    applied = uniform(key, OP, slot) < p.gate[low * p.slots + slot];
    entry = slot;
  }
  *arg = applied ? p.table_arg[2 * entry + sign] : 0.0;
  if (!applied) *op = IDENTITY;
}

// ---- Pixels ----

__device__ u32 red(u32 pixel) { return pixel & 255; }
__device__ u32 green(u32 pixel) { return (pixel >> 8) & 255; }
__device__ u32 blue(u32 pixel) { return pixel >> 16; }
__device__ u32 packed(u32 r, u32 g, u32 b) { return r | (g << 8) | (b << 16); }
__device__ u32 grey(u32 pixel) { return (19595u * red(pixel) + 38470u * green(pixel) + 7471u * blue(pixel) + 32768u) >> 16; }

__device__ u32 blended(float degenerate, float value, float factor) {
  float mixed = degenerate + factor * (value - degenerate);
  return (u32)(int)fminf(fmaxf(mixed, 0.0f), 255.0f);
}

// Exact for whole numbers under 2^31, and cheaper than the conversion instructions.
__device__ double to_double(u32 value) { return __hiloint2double(0x43300000, (int)value) - 4503599627370496.0; }
__device__ u32 truncated(double value) { return (u32)__double2loint(__dadd_rz(value, 4503599627370496.0)); }

__device__ double linear(double v1, double v2, double d) { return v1 + (v2 - v1) * d; }

__device__ double cubic(double v1, double v2, double v3, double v4, double d) {
  double p2 = -v1 + v3, p3 = 2.0 * (v1 - v2) + v3 - v4, p4 = -v1 + v2 - v3 + v4;
  return v2 + d * (p2 + d * (p3 + d * p4));
}

__device__ u32 cubic_byte(double value) { return truncated(fmin(fmax(value, 0.0), 255.0)); }

__device__ u32 bilinear(const u32* source, int height, int width, double x_in, double y_in) {
  x_in -= 0.5; y_in -= 0.5;
  double left = floor(x_in), top = floor(y_in), dx = x_in - left, dy = y_in - top;
  int x = (int)left, y = (int)top;
  int x0 = max(x, 0), x1 = min(x + 1, width - 1), y0 = max(y, 0), y1 = min(y + 1, height - 1);
  u32 a = source[y0 * width + x0], b = source[y0 * width + x1], c = source[y1 * width + x0], d = source[y1 * width + x1];
  u32 result = 0;
#pragma unroll
  for (int shift = 0; shift < 24; shift += 8) {
    double upper = linear(to_double((a >> shift) & 255), to_double((b >> shift) & 255), dx);
    double lower = linear(to_double((c >> shift) & 255), to_double((d >> shift) & 255), dx);
    result |= truncated(linear(upper, lower, dy)) << shift;
  }
  return result;
}

__device__ u32 bicubic(const u32* source, int height, int width, double x_in, double y_in) {
  x_in -= 0.5; y_in -= 0.5;
  double left = floor(x_in), top = floor(y_in), dx = x_in - left, dy = y_in - top;
  int x = (int)left - 1, y = (int)top - 1, columns[4];
  for (int j = 0; j < 4; j++) columns[j] = min(max(x + j, 0), width - 1);
  double lines[3][4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const u32* row = source + min(max(y + i, 0), height - 1) * width;
    u32 v1 = row[columns[0]], v2 = row[columns[1]], v3 = row[columns[2]], v4 = row[columns[3]];
#pragma unroll
    for (int c = 0; c < 3; c++)
      lines[c][i] = cubic(to_double((v1 >> 8 * c) & 255), to_double((v2 >> 8 * c) & 255),
                          to_double((v3 >> 8 * c) & 255), to_double((v4 >> 8 * c) & 255), dx);
  }
  u32 result = 0;
#pragma unroll
  for (int c = 0; c < 3; c++)
    result |= cubic_byte(cubic(lines[c][0], lines[c][1], lines[c][2], lines[c][3], dy)) << 8 * c;
  return result;
}

struct Shared {  // what a block shares besides its pixels
  int op[MAX_SLOTS], code[MAX_SLOTS], turn[MAX_SLOTS];
  double arg[MAX_SLOTS], matrix[MAX_SLOTS][6];
  u32 histogram[HISTOGRAM_COPIES][3][256];
  u8 table[3][256];
  int box[4], offset[2], flipped, tall[ERASE_ATTEMPTS], wide[ERASE_ATTEMPTS];
  u64 grey_sum;
};

__device__ void look_up(const u8 (*table)[256], u32* pixels, int count) {
  for (int p = threadIdx.x; p < count; p += blockDim.x) {
    u32 pixel = pixels[p];
    pixels[p] = packed(table[0][red(pixel)], table[1][green(pixel)], table[2][blue(pixel)]);
  }
}

__device__ u32 pointwise(int op, double arg, u32 v) {
  int whole = (int)arg;
  if (op == INVERT) return 255 - v;
  if (op == SOLARIZE) return (double)v < arg ? v : 255 - v;
  if (op == SOLARIZE_ADD) return v < 128 ? min(v + (u32)whole, 255u) : v;
  int dropped = 8 - whole;
  return (v >> dropped) << dropped;
}

// One warp per channel turns the histogram into a table; each lane holds eight neighbouring values.
__device__ void histogram_table(Shared& s, int op, int count) {
  int channel = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (channel >= 3) return;
  u32 counts[8], own = 0;
  int low = 256, high = -1;
  for (int j = 0; j < 8; j++) {
    int v = 8 * lane + j;
    counts[j] = 0;
    for (int copy = 0; copy < HISTOGRAM_COPIES; copy++) counts[j] += s.histogram[copy][channel][v];
    own += counts[j];
    if (counts[j]) { low = min(low, v); high = v; }
  }
  for (int step = 16; step; step /= 2) {
    low = min(low, __shfl_xor_sync(~0u, low, step));
    high = max(high, __shfl_xor_sync(~0u, high, step));
  }
  u8* table = s.table[channel];
  if (op == AUTOCONTRAST) {
    double scale = 255.0 / (double)max(high - low, 1), offset = -(double)low * scale;
    for (int j = 0; j < 8; j++) {
      int v = 8 * lane + j;
      table[v] = high > low ? (u8)min(max((int)((double)v * scale + offset), 0), 255) : (u8)v;
    }
    return;
  }
  u32 below = own;
  for (int step = 1; step < 32; step *= 2) {
    u32 other = __shfl_up_sync(~0u, below, step);
    if (lane >= step) below += other;
  }
  below -= own;
  u32 highest = 0;
  for (int j = 0; j < 8; j++) if (8 * lane + j == high) highest = counts[j];
  highest = __shfl_sync(~0u, highest, high / 8);
  u32 step = ((u32)count - highest) / 255;
  for (int j = 0; j < 8; j++) {
    int v = 8 * lane + j;
    table[v] = step ? (u8)min((step / 2 + below) / step, 255u) : (u8)v;
    below += counts[j];
  }
}

__device__ void geometric(const u32* source, u32* target, const double* m, int turn, int code, int height, int width,
                          u32 fill) {
  int count = height * width;
  bool aligned = m[1] == 0.0 && m[3] == 0.0;
  i64 a0 = 0, a1 = 0, a3 = 0, a4 = 0, start_x = 0, start_y = 0;
  if (turn < 0 && code == NEAREST && !aligned) {
    a0 = fixed_point(m[0]); a1 = fixed_point(m[1]); a3 = fixed_point(m[3]); a4 = fixed_point(m[4]);
    start_x = fixed_point(m[2] + m[0] * 0.5 + m[1] * 0.5);
    start_y = fixed_point(m[5] + m[3] * 0.5 + m[4] * 0.5);
  }
  for (int p = threadIdx.x; p < count; p += blockDim.x) {
    int y = p / width, x = p - y * width;
    u32 result = fill;
    if (turn >= 0) {
      result = turn == 0 ? source[p] : turn == 1 ? source[x * width + width - 1 - y]
             : turn == 2 ? source[count - 1 - p] : source[(height - 1 - x) * width + y];
    } else if (code == NEAREST) {
      i64 source_x, source_y;
      if (aligned) {  // Pillow adds the step pixel by pixel and rounds each time
        double position_x = m[2] + m[0] * 0.5, position_y = m[5] + m[4] * 0.5;
        for (int i = 0; i < x; i++) position_x += m[0];
        for (int i = 0; i < y; i++) position_y += m[4];
        source_x = position_x < 0.0 ? -1 : (i64)position_x;
        source_y = position_y < 0.0 ? -1 : (i64)position_y;
      } else {
        source_x = (start_x + y * a1 + x * a0) >> 16;
        source_y = (start_y + y * a4 + x * a3) >> 16;
      }
      if (source_x >= 0 && source_x < width && source_y >= 0 && source_y < height)
        result = source[source_y * width + source_x];
    } else {
      double x_out = x + 0.5, y_out = y + 0.5;
      double x_in = m[0] * x_out + m[1] * y_out + m[2], y_in = m[3] * x_out + m[4] * y_out + m[5];
      if (x_in >= 0.0 && x_in < (double)width && y_in >= 0.0 && y_in < (double)height)
        result = code == BILINEAR ? bilinear(source, height, width, x_in, y_in)
                                  : bicubic(source, height, width, x_in, y_in);
    }
    target[p] = result;
  }
}

__device__ void mirror(const u32* source, u32* target, bool sideways, int height, int width) {
  for (int p = threadIdx.x; p < height * width; p += blockDim.x) {
    int y = p / width, x = p - y * width;
    target[p] = sideways ? source[p - x + width - 1 - x] : source[(height - 1 - y) * width + x];
  }
}

__device__ void sharpness(const u32* source, u32* target, float factor, int height, int width) {
  float side = 1.0f / 13.0f, centre = 5.0f / 13.0f;
  for (int p = threadIdx.x; p < height * width; p += blockDim.x) {
    int y = p / width, x = p - y * width;
    u32 here = source[p], result = here;
    if (x > 0 && y > 0 && x < width - 1 && y < height - 1) {
      const u32 *below = source + p + width, *above = source + p - width, *row = source + p;
      u32 n[9] = {below[-1], below[0], below[1], row[-1], here, row[1], above[-1], above[0], above[1]};
      result = 0;
#pragma unroll
      for (int shift = 0; shift < 24; shift += 8) {
        float v[9];
#pragma unroll
        for (int j = 0; j < 9; j++) v[j] = (float)((n[j] >> shift) & 255);
        float total = 0.5f;  // Pillow's order: 0.5, then the rows from the bottom up
        total += v[0] * side + v[1] * side + v[2] * side;
        total += v[3] * side + v[4] * centre + v[5] * side;
        total += v[6] * side + v[7] * side + v[8] * side;
        result |= blended((float)(int)fminf(total, 255.0f), v[4], factor) << shift;
      }
    }
    target[p] = result;
  }
}

__device__ void write_value(const Params& p, u64 at, u32 byte, int channel) {
  if (p.output == OUT_UINT8) { ((u8*)p.out)[at] = (u8)byte; return; }
  float value = (float)byte;
  if (p.normalises) { value = value * p.scale[channel]; value = value + p.shift[channel]; }
  if (p.output == OUT_FLOAT32) { ((float*)p.out)[at] = value; return; }
  if (p.output == OUT_BFLOAT16) {
    u32 bits = __float_as_uint(value);
    ((u16*)p.out)[at] = (u16)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
    return;
  }
  u16 half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  ((u16*)p.out)[at] = half;
}

#ifndef THREADS
#define THREADS 1024
#endif
extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS) augment(const Params p) {
  extern __shared__ u32 pixels_in_shared[];
  __shared__ Shared s;
  int b = blockIdx.x, tid = threadIdx.x, height = p.height, width = p.width, count = height * width;
  i64 row = p.index ? p.index[b] : b;
  Key key = {};
  if (p.ids) {
    u64 id = (u64)p.ids[b], seed = (u64)*p.seed;
    key = {(u32)seed, (u32)(seed >> 32), (u32)*p.epoch, (u32)id, (u32)(id >> 32)};
  }

  // The program and its coefficients: one thread a slot. Crop, flip and erasing: one thread a draw.
  for (int k = tid; k < p.slots; k += blockDim.x) {
    int op; double arg;
    u64 at = (u64)b * p.slots + k;
    int code = p.code ? (int)p.code[at] : -1;
    if (p.draw == GIVEN) { op = (int)p.op[at]; arg = p.arg[at]; }
    else {
      draw_slot(p, key, k, &op, &arg);
      if (p.random_code) code = uniform(key, INTERPOLATION, k) < 0.5 ? BILINEAR : BICUBIC;
      if (p.drawn) p.drawn[at] = op;
    }
    s.op[k] = op; s.arg[k] = arg; s.code[k] = code < 0 ? p.default_code : code;
    s.turn[k] = is_affine(op) ? affine(op, arg, height, width, s.matrix[k]) : -1;
  }
  int last = blockDim.x - 1;
  if (tid == last) {
    s.offset[0] = s.offset[1] = 0;
    if (p.crops) for (int i = 0; i < 2; i++) s.offset[i] = choice(uniform(key, CROP, i), 2 * p.pad + 1) - p.pad;
  }
  if (tid == last - 1) s.flipped = p.flips && uniform(key, FLIP, 0) < p.flip;
  if (p.erases && tid >= last - 1 - ERASE_ATTEMPTS && tid < last - 1) {
    int attempt = tid - (last - 1 - ERASE_ATTEMPTS);
    double area = p.area_low + uniform(key, ERASE, 3 + 2 * attempt) * p.area_span;
    area = area * (double)count;
    double aspect = keyed_exp(p.log_aspect_low + uniform(key, ERASE, 4 + 2 * attempt) * p.log_aspect_span);
    s.tall[attempt] = (int)rint(keyed_sqrt(area * aspect));
    s.wide[attempt] = (int)rint(keyed_sqrt(area / aspect));
  }
  __syncthreads();
  if (tid == 0) {
    s.box[0] = s.box[1] = s.box[2] = s.box[3] = 0;
    if (p.erases && uniform(key, ERASE, 0) < p.erase)
      for (int attempt = 0; attempt < ERASE_ATTEMPTS; attempt++) {
        int tall = s.tall[attempt], wide = s.wide[attempt];
        if (tall >= height || wide >= width) continue;
        s.box[0] = (int)floor(uniform(key, ERASE, 1) * ((double)height - (double)tall + 1.0));
        s.box[1] = (int)floor(uniform(key, ERASE, 2) * ((double)width - (double)wide + 1.0));
        s.box[2] = tall; s.box[3] = wide;
        break;
      }
  }

  u32* global_buffers = p.scratch ? p.scratch + (u64)b * count * (p.image_in_shared ? 1 : 2) : 0;
  u32* current = p.image_in_shared ? pixels_in_shared : global_buffers;
  u32* other = p.both_in_shared ? pixels_in_shared + count : p.image_in_shared ? global_buffers : global_buffers + count;
  const u8* image = p.images + (u64)row * p.channels * count;
  for (int q = tid; q < count; q += blockDim.x) {
    int y = q / width, x = q - y * width;
    if (s.flipped) x = width - 1 - x;
    x += s.offset[1]; y += s.offset[0];
    u32 pixel = 0;
    if (x >= 0 && x < width && y >= 0 && y < height) {
      int at = y * width + x;
      u32 first = image[at];
      pixel = p.channels == 3 ? packed(first, image[count + at], image[2 * count + at]) : packed(first, first, first);
    }
    current[q] = pixel;
  }
  __syncthreads();

  for (int k = 0; k < p.slots; k++) {
    int op = s.op[k];
    if (op == IDENTITY) continue;
    double arg = s.arg[k];
    float factor = (float)arg;
    bool swaps = false;
    if (op == AUTOCONTRAST || op == EQUALIZE) {
      for (int i = tid; i < HISTOGRAM_COPIES * 3 * 256; i += blockDim.x) (&s.histogram[0][0][0])[i] = 0;
      __syncthreads();
      u32(*histogram)[256] = s.histogram[tid % HISTOGRAM_COPIES];
      for (int q = tid; q < count; q += blockDim.x) {
        u32 pixel = current[q];
        atomicAdd(&histogram[0][red(pixel)], 1);
        atomicAdd(&histogram[1][green(pixel)], 1);
        atomicAdd(&histogram[2][blue(pixel)], 1);
      }
      __syncthreads();
      histogram_table(s, op, count);
      __syncthreads();
      look_up(s.table, current, count);
    } else if (op == COLOR) {
      for (int q = tid; q < count; q += blockDim.x) {
        u32 pixel = current[q];
        float flat = (float)grey(pixel);
        current[q] = packed(blended(flat, (float)red(pixel), factor), blended(flat, (float)green(pixel), factor),
                            blended(flat, (float)blue(pixel), factor));
      }
    } else if (op == SHARPNESS) {
      sharpness(current, other, factor, height, width);
      swaps = true;
    } else if (op == FLIP_X || op == FLIP_Y) {
      mirror(current, other, op == FLIP_X, height, width);
      swaps = true;
    } else if (is_affine(op)) {
      geometric(current, other, s.matrix[k], s.turn[k], s.code[k], height, width, p.fill);
      swaps = true;
    } else {
      float flat = 0.0f;
      if (op == CONTRAST) {
        if (tid == 0) s.grey_sum = 0;
        __syncthreads();
        u32 sum = 0;
        for (int q = tid; q < count; q += blockDim.x) sum += grey(current[q]);
        for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        if (tid % 32 == 0) atomicAdd(&s.grey_sum, (u64)sum);
        __syncthreads();
        flat = (float)(int)((double)s.grey_sum / (double)count + 0.5);
      }
      for (int v = tid; v < 256; v += blockDim.x) {
        u32 mapped = op == CONTRAST || op == BRIGHTNESS ? blended(flat, (float)v, factor) : pointwise(op, arg, v);
        s.table[0][v] = s.table[1][v] = s.table[2][v] = (u8)mapped;
      }
      __syncthreads();
      look_up(s.table, current, count);
    }
    if (swaps) { u32* swapped = current; current = other; other = swapped; }
    __syncthreads();
  }

  u64 base = (u64)b * p.channels * count;
  int top = s.box[0], left = s.box[1], tall = s.box[2], wide = s.box[3];
  for (int q = tid; q < count; q += blockDim.x) {
    int y = q / width, x = q - y * width;
    u32 pixel = current[q];
    if (y >= top && y < top + tall && x >= left && x < left + wide) pixel = 0;
    for (int c = 0; c < p.channels; c++)
      write_value(p, base + (p.channels_last ? (u64)q * p.channels + c : (u64)c * count + q), (pixel >> 8 * c) & 255, c);
  }
}
